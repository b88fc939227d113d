"""Grants -> what containers receive. Pure: values in, values out, no I/O."""
