"""NVIDIA's Multi-Process Service, as its control daemon is driven."""
