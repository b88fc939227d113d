"""A simulated NVIDIA GPU node."""
