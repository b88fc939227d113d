"""The API server: labels and events of the node.

Only this package imports lightkube, and only inside functions: an agent without an API server saves
the memory.
"""
