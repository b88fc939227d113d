"""Everything goes wrong at once on a simulated node, and afterwards nothing is wrong."""
