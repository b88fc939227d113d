/* The processes of a GPU: one file per process and GPU in state/procs. */
#ifndef SIM_PROCS_H
#define SIM_PROCS_H

#include <stdint.h>

#include "state.h"

enum { SIM_WHOLE_GPU = -1 };

struct sim_proc {
    int pid;
    char gpu[96]; /* UUID of the GPU or of a MIG device */
    char type[8]; /* "C", "M+C" (an MPS client) or "G" */
    char name[256];
    uint64_t used;   /* bytes */
    unsigned sm;     /* utilization in percent */
    unsigned memory; /* memory utilization in percent */
    int gi, ci;      /* MIG instance, SIM_WHOLE_GPU without MIG */
};

/*
 * Writes or replaces the file of the caller and holds a lock on it. For readers, the process ends
 * with the lock, which also works across PID namespaces and with reused PIDs.
 * *held is the descriptor of the lock. Set it to -1 before the first call.
 */
int sim_proc_hold(const struct sim_state *state, const struct sim_proc *proc, int *held);
int sim_proc_remove(const struct sim_state *state, const struct sim_proc *proc, int *held);

/*
 * The live processes of a GPU, sorted by PID. Free the list with free(3). Returns -1 on error.
 * `gpu` is the index of the GPU, `gi` and `ci` select a MIG instance (SIM_WHOLE_GPU: any).
 */
int sim_procs_read(const struct sim_state *state, int gpu, int gi, int ci, struct sim_proc **list);

/* Memory that processes use on the GPU or instance, without the reserved memory. */
uint64_t sim_procs_used(const struct sim_state *state, int gpu, int gi, int ci);

#endif
