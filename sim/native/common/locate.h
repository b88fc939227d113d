/* Finds the directory of the simulated node. */
#ifndef SIM_LOCATE_H
#define SIM_LOCATE_H

#include <stddef.h>

/* The path of the node in containers that have only parts of the driver. */
#define SIM_PLACE_IN_CONTAINERS "/run/gpuslice-sim"

/*
 * Writes the node directory into `out`: $GPUSLICE_SIM_NODE, or the first directory above `own_file`
 * (links resolved) that contains state/node, or the path in containers. Returns 0, or -1 if there
 * is none. Libraries pass their path from dladdr(3), programs pass "/proc/self/exe".
 */
int sim_locate_node(const char *own_file, char *out, size_t size);

#endif
