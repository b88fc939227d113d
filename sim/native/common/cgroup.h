/* Memory limits of cgroups (driver 615): gpu.<i>.limits.<cgroup> = "<soft> <hard>". */
#ifndef SIM_CGROUP_H
#define SIM_CGROUP_H

#include <stddef.h>
#include <stdint.h>

#include "state.h"

enum { SIM_CGROUP_SIZE = 4096 };

/* The cgroup (version 2) of a process. -1 if it is not known. */
int sim_cgroup_of(int pid, char *cgroup, size_t size);

/* The part of a path below the mount of cgroup version 2, as /proc/<pid>/cgroup shows it. */
const char *sim_cgroup_below_mount(const char *path);

/* The limits of a cgroup: 0 and all ones if none are set. */
void sim_cgroup_limits(const struct sim_state *state, int gpu, const char *cgroup,
                       unsigned long long *soft, unsigned long long *hard);

/* Memory that the processes in a cgroup and below it use on a GPU. */
uint64_t sim_cgroup_used(const struct sim_state *state, int gpu, const char *cgroup);

/* What a process may still allocate: the hard limits of its cgroup and of those above it. */
uint64_t sim_cgroup_room(const struct sim_state *state, int gpu, int pid);

/* The same, but only by the limit of its own cgroup, which is the one that CUDA reports. */
uint64_t sim_cgroup_reported_room(const struct sim_state *state, int gpu, int pid);

#endif
