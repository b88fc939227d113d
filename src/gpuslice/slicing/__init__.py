"""GPUs and rules -> pools; device ids -> grants. Pure: values in, values out, no I/O."""
