/* Where the simulated node lies. */
#ifndef SIM_LOCATE_H
#define SIM_LOCATE_H

#include <stddef.h>

/*
 * Writes the node directory into `out`: $GPUSLICE_SIM_NODE, else the first directory above
 * `own_file` (links resolved) that holds state/node. Answers 0, or -1 if there is none.
 * Libraries pass what dladdr(3) says of them, programs "/proc/self/exe".
 */
int sim_locate_node(const char *own_file, char *out, size_t size);

#endif
