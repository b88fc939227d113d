/* Where the simulated node lies. */
#ifndef SIM_LOCATE_H
#define SIM_LOCATE_H

#include <stddef.h>

/* Where containers that have only parts of the driver find the node they are on. */
#define SIM_PLACE_IN_CONTAINERS "/run/gpuslice-sim"

/*
 * Writes the node directory into `out`: $GPUSLICE_SIM_NODE, else the first directory above
 * `own_file` (links resolved) that holds state/node, else the place in containers. Answers 0, or
 * -1 if there is none.
 * Libraries pass what dladdr(3) says of them, programs "/proc/self/exe".
 */
int sim_locate_node(const char *own_file, char *out, size_t size);

#endif
