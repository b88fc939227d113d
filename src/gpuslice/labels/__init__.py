"""Feature discovery: labels for the GPUs of the node and for what it advertises."""
