"""NVIDIA's Multi-Process Service (MPS): control daemons, and the limits that they enforce."""
