"""Files that other processes read, write or replace at the same time."""
