"""How GPUs are cut and handed out: values in, values out, no I/O."""
