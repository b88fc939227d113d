"""Command lines: argument handling and nothing else."""
