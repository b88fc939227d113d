"""Memory limits of pods and containers that the driver enforces by their cgroups."""
