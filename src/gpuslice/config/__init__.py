"""Settings: options, the configuration file, the order of precedence, and validation."""
