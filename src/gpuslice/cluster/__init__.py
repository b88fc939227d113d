"""The API server: the node's labels, events about it.

Only this package uses lightkube, and imports it inside functions: the modules can be named
anywhere, and an agent that needs no API server does without the client's memory.
"""
