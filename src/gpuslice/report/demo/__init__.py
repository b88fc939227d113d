"""A simulated node end to end: the real agent, a simulated driver, MPS and kubelet."""
