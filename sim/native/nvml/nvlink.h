#ifndef SIM_NVML_NVLINK_H
#define SIM_NVML_NVLINK_H

#include "library.h"

/* 1 if an active NVLink connects the two GPUs, directly or through switches. */
int nvlink_between(const struct sim_state *state, int a, int b);

#endif
