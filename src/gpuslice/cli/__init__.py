"""The commands and their command lines."""
