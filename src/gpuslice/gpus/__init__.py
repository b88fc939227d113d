"""The hardware: the GPUs of the node, their properties and their health."""
