"""Runs the agent on a simulated node, with a simulated driver, MPS and kubelet."""
