"""What runs as a process: each program assembles the packages below it and owns its life cycle."""
