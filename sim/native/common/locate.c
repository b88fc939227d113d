#include "locate.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int is_node(const char *directory)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/state/node", directory);
    return access(path, R_OK) == 0;
}

static int answer(const char *directory, char *out, size_t size)
{
    return snprintf(out, size, "%s", directory) < (int)size ? 0 : -1;
}

int sim_locate_node(const char *own_file, char *out, size_t size)
{
    const char *given = getenv("GPUSLICE_SIM_NODE");
    if (given && *given)
        return is_node(given) ? answer(given, out, size) : -1;

    char path[PATH_MAX];
    if (!own_file || !realpath(own_file, path))
        return -1;
    for (char *slash = strrchr(path, '/'); slash; slash = strrchr(path, '/')) {
        *slash = '\0';
        if (is_node(path))
            return answer(path, out, size);
    }
    return is_node(SIM_PLACE_IN_CONTAINERS) ? answer(SIM_PLACE_IN_CONTAINERS, out, size) : -1;
}
