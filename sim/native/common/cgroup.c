#include "cgroup.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "procs.h"

int sim_cgroup_of(int pid, char *cgroup, size_t size)
{
    char path[32], line[SIM_CGROUP_SIZE + 8];
    snprintf(path, sizeof path, "/proc/%d/cgroup", pid);
    FILE *file = fopen(path, "re");
    if (!file)
        return -1;
    int found = -1;
    while (found < 0 && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "0::", 3) == 0 && strlen(line + 3) < size) {
            strcpy(cgroup, line + 3);
            found = 0;
        }
    }
    fclose(file);
    return found;
}

const char *sim_cgroup_below_mount(const char *path)
{
    char line[SIM_CGROUP_SIZE], place[SIM_CGROUP_SIZE], kind[64];
    size_t longest = 0;
    FILE *mounts = fopen("/proc/self/mounts", "re");
    while (mounts && fgets(line, sizeof line, mounts)) {
        if (sscanf(line, "%*s %4095s %63s", place, kind) != 2 || strcmp(kind, "cgroup2") != 0)
            continue;
        size_t length = strlen(place);
        if (length > longest && strncmp(path, place, length) == 0 &&
            (path[length] == '/' || path[length] == '\0'))
            longest = length;
    }
    if (mounts)
        fclose(mounts);
    static const char usual[] = "/sys/fs/cgroup";
    if (longest == 0 && strncmp(path, usual, sizeof usual - 1) == 0)
        longest = sizeof usual - 1;
    return path[longest] ? path + longest : "/";
}

void sim_cgroup_limits(const struct sim_state *state, int gpu, const char *cgroup,
                       unsigned long long *soft, unsigned long long *hard)
{
    *soft = 0;
    *hard = ~0ull;
    sscanf(sim_text(state, "", "gpu.%d.limits.%s", gpu, cgroup), "%llu %llu", soft, hard);
}

static int is_flat(const struct sim_state *state)
{
    return sim_number(state, 0, "limits.flat") == 1;
}

/* 1 if `inner` is the cgroup or below it. */
static int contains(const struct sim_state *state, const char *cgroup, const char *inner)
{
    size_t length = strlen(cgroup);
    if (is_flat(state))
        return strcmp(cgroup, inner) == 0;
    if (strcmp(cgroup, "/") == 0)
        return 1;
    return strncmp(inner, cgroup, length) == 0 && (inner[length] == '\0' || inner[length] == '/');
}

uint64_t sim_cgroup_used(const struct sim_state *state, int gpu, const char *cgroup)
{
    char inner[SIM_CGROUP_SIZE];
    struct sim_proc *list;
    int count = sim_procs_read(state, gpu, SIM_WHOLE_GPU, SIM_WHOLE_GPU, &list);
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        if (sim_cgroup_of(list[i].pid, inner, sizeof inner) == 0 && contains(state, cgroup, inner))
            used += list[i].used;
    free(list);
    return used;
}

static uint64_t room_in(const struct sim_state *state, int gpu, const char *cgroup)
{
    unsigned long long soft, hard;
    sim_cgroup_limits(state, gpu, cgroup, &soft, &hard);
    if (hard == ~0ull)
        return UINT64_MAX;
    uint64_t used = sim_cgroup_used(state, gpu, cgroup);
    return used < hard ? hard - used : 0;
}

uint64_t sim_cgroup_room(const struct sim_state *state, int gpu, int pid)
{
    char cgroup[SIM_CGROUP_SIZE];
    uint64_t least = UINT64_MAX;
    if (sim_cgroup_of(pid, cgroup, sizeof cgroup) < 0)
        return least;
    while (*cgroup) {
        uint64_t room = room_in(state, gpu, cgroup);
        least = room < least ? room : least;
        char *slash = strrchr(cgroup, '/');
        if (!slash || is_flat(state))
            break;
        *slash = '\0';
    }
    return least;
}

uint64_t sim_cgroup_reported_room(const struct sim_state *state, int gpu, int pid)
{
    char cgroup[SIM_CGROUP_SIZE];
    if (sim_cgroup_of(pid, cgroup, sizeof cgroup) < 0)
        return UINT64_MAX;
    return room_in(state, gpu, cgroup);
}
