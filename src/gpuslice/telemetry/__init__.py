"""Logs, metrics and probes of a process."""
