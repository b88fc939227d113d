/* The devices that a process sees, and how it names them. */
#ifndef SIMCUDA_VISIBLE_H
#define SIMCUDA_VISIBLE_H

#include "cuda.h"

/*
 * Whether the container runtime passed any GPU to the process, by the variable or by a device node.
 * Without one, libcuda does not connect to MPS.
 */
bool has_gpus(void);

/*
 * Keeps the devices that the container runtime passed to the process: those of
 * NVIDIA_VISIBLE_DEVICES, or those with a /dev/nvidiaN if it is "void". It does not apply to
 * clients of MPS, because the server opens the GPUs.
 */
void keep_injected(struct device_list *devices);

/*
 * CUDA_VISIBLE_DEVICES: selects and orders, and ends before the first entry that matches no device.
 * A CUDA process uses either one MIG device or whole GPUs.
 */
void keep_chosen(struct device_list *devices);

/* The ordinal of the device with this number, UUID or unique prefix of a UUID. -1 if none. */
int find_device(const struct device_list *devices, const char *key);

#endif
