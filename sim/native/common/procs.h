/* Who uses a GPU: one file per process and GPU in state/procs. */
#ifndef SIM_PROCS_H
#define SIM_PROCS_H

#include <stdint.h>

#include "state.h"

enum { SIM_WHOLE_GPU = -1 };

struct sim_proc {
    int pid;
    char gpu[96]; /* UUID of the GPU; a MIG device's UUID is understood too */
    char type[8]; /* "C", "M+C" (an MPS client) or "G" */
    char name[256];
    uint64_t used;   /* bytes */
    unsigned sm;     /* percent of the GPU's time */
    unsigned memory; /* percent of the memory's time */
    int gi, ci;      /* MIG instance, SIM_WHOLE_GPU without MIG */
};

/*
 * Writes (or replaces) the caller's file and holds a lock on it: readers take the process for gone
 * when the lock is gone, which also holds across PID namespaces and for reused PIDs.
 * *held keeps the lock's descriptor; set it to -1 before the first call.
 */
int sim_proc_hold(const struct sim_state *state, const struct sim_proc *proc, int *held);
int sim_proc_remove(const struct sim_state *state, const struct sim_proc *proc, int *held);

/*
 * The live processes of a GPU, sorted by PID; the list goes to free(3). -1 on error.
 * `gpu` is the GPU's index, `gi` and `ci` choose a MIG instance (SIM_WHOLE_GPU: any).
 */
int sim_procs_read(const struct sim_state *state, int gpu, int gi, int ci, struct sim_proc **list);

/* Memory that processes use on the GPU or instance, without the driver's own reserve. */
uint64_t sim_procs_used(const struct sim_state *state, int gpu, int gi, int ci);

#endif
