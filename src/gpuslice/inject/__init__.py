"""A grant -> what the container receives. Pure: values in, values out."""
