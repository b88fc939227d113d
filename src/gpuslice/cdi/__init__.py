"""CDI specifications: what they contain, and the files that a container runtime reads."""
