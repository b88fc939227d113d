"""Views for people."""
