"""The node daemon: assembles the parts, owns start, reload and shutdown."""
