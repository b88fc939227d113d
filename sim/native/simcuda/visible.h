/* Which devices a process sees, and how it names them. */
#ifndef SIMCUDA_VISIBLE_H
#define SIMCUDA_VISIBLE_H

#include "cuda.h"

/*
 * What the container runtime leaves of the devices. NVIDIA_VISIBLE_DEVICES decides for a plain
 * process; inside a container the /dev/nvidiaN nodes do, and the variable may narrow them.
 */
void keep_injected(struct device_list *devices, bool node_is_reachable);

/*
 * CUDA_VISIBLE_DEVICES: chooses and orders, and ends before the first entry that names nothing.
 * A CUDA process uses either one MIG device or whole GPUs.
 */
void keep_chosen(struct device_list *devices);

/* The ordinal of the device with this number, UUID or unambiguous UUID prefix; -1 if none. */
int find_device(const struct device_list *devices, const char *key);

#endif
