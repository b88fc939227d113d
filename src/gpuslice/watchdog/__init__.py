"""The watchdog: compares the memory that containers use with the memory that they were granted."""
