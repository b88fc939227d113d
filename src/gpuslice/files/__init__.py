"""Files that other processes read, write or replace while we use them."""
