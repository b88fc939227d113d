"""Feature discovery: what the node has and offers, as labels."""
