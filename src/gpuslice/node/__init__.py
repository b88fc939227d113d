"""One model of the node: a snapshot of its state, and the reconciler that keeps it current."""
