/* A process on the GPUs without MPS: only the memory and the compute mode restrict it. */
#ifndef SIMCUDA_LOCAL_H
#define SIMCUDA_LOCAL_H

#include "cuda.h"
#include "procs.h"
#include "state.h"

struct local {
    struct sim_state *state; /* NULL if there is no node */
    struct sim_proc procs[MAX_DEVICES]; /* by ordinal */
    int held[MAX_DEVICES];
    bool is_registered;
};

/* Finds the node of this program. Without one, there are no devices. */
void local_open(struct local *local);
void local_close(struct local *local, const struct device_list *devices);

void local_devices(const struct local *local, struct device_list *devices);
uint64_t local_context_bytes(const struct local *local);
int local_branch(const struct local *local);

/* Opens the device: checks the compute mode, then allocates the context. */
int local_context(struct local *local, const struct device *device, int ordinal,
                  struct warnings *warnings, struct failure *failure);
int local_alloc(struct local *local, const struct device *device, int ordinal, uint64_t bytes,
                struct failure *failure);
uint64_t local_free_bytes(struct local *local, const struct device *device, int ordinal);

/* -1 if the GPU is lost. */
int local_check(struct local *local, const struct device *device, struct failure *failure);

#endif
