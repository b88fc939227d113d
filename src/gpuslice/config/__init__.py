"""Settings: their schema, where they come from, and which source wins."""
