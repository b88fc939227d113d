"""The hardware: which GPUs there are and how they fare."""
