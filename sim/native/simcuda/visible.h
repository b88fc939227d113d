/* Which devices a process sees, and how it names them. */
#ifndef SIMCUDA_VISIBLE_H
#define SIMCUDA_VISIBLE_H

#include "cuda.h"

/*
 * Whether the container runtime gave the process any GPU: one variable or one node will do.
 * libcuda does not get as far as MPS without.
 */
bool has_gpus(void);

/*
 * What the container runtime leaves of the node's devices: those of NVIDIA_VISIBLE_DEVICES, or
 * those with a /dev/nvidiaN if it is "void". It does not bind a client of MPS, whose server opens
 * the GPUs.
 */
void keep_injected(struct device_list *devices);

/*
 * CUDA_VISIBLE_DEVICES: chooses and orders, and ends before the first entry that names nothing.
 * A CUDA process uses either one MIG device or whole GPUs.
 */
void keep_chosen(struct device_list *devices);

/* The ordinal of the device with this number, UUID or unambiguous UUID prefix; -1 if none. */
int find_device(const struct device_list *devices, const char *key);

#endif
