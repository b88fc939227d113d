"""NVIDIA's device plugin and ours on one node, asked the same, and what may differ."""
