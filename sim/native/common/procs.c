#include "procs.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum life { BY_PID, BY_LOCK, INVENTED };

static int path_of(const struct sim_state *state, const struct sim_proc *proc, char *path)
{
    return snprintf(path, PATH_MAX, "%s/state/procs/%d-%s", sim_state_directory(state), proc->pid,
                    proc->gpu) < PATH_MAX
               ? 0
               : -1;
}

static int write_file(int file, const struct sim_proc *proc)
{
    int failed = dprintf(file, "pid=%d\ngpu=%s\ntype=%s\nused=%llu\nsm=%u\nmemory=%u\nname=%s\n",
                         proc->pid, proc->gpu, proc->type, (unsigned long long)proc->used, proc->sm,
                         proc->memory, proc->name) < 0;
    if (proc->gi != SIM_WHOLE_GPU)
        failed |= dprintf(file, "gi=%d\nci=%d\n", proc->gi, proc->ci) < 0;
    failed |= dprintf(file, "live=lock\n") < 0;
    return failed ? -1 : 0;
}

int sim_proc_hold(const struct sim_state *state, const struct sim_proc *proc, int *held)
{
    char path[PATH_MAX], fresh[PATH_MAX + 8];
    if (path_of(state, proc, path) < 0)
        return -1;
    /* Readers skip names with a leading dot, so the file is not visible before the rename. */
    snprintf(fresh, sizeof fresh, "%s/state/procs/.%d-%s", sim_state_directory(state), proc->pid,
             proc->gpu);
    int file = open(fresh, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (file < 0)
        return -1;
    if (flock(file, LOCK_EX | LOCK_NB) < 0 || write_file(file, proc) < 0 ||
        rename(fresh, path) < 0) {
        int reason = errno;
        close(file);
        unlink(fresh);
        errno = reason;
        return -1;
    }
    if (*held >= 0)
        close(*held);
    *held = file;
    return 0;
}

int sim_proc_remove(const struct sim_state *state, const struct sim_proc *proc, int *held)
{
    char path[PATH_MAX];
    if (path_of(state, proc, path) < 0)
        return -1;
    int result = unlink(path) == 0 || errno == ENOENT ? 0 : -1;
    if (*held >= 0)
        close(*held);
    *held = -1;
    return result;
}

static void take(struct sim_proc *proc, enum life *life, const char *key, const char *value)
{
    if (strcmp(key, "pid") == 0)
        proc->pid = atoi(value);
    else if (strcmp(key, "gpu") == 0)
        snprintf(proc->gpu, sizeof proc->gpu, "%s", value);
    else if (strcmp(key, "type") == 0)
        snprintf(proc->type, sizeof proc->type, "%s", value);
    else if (strcmp(key, "name") == 0)
        snprintf(proc->name, sizeof proc->name, "%s", value);
    else if (strcmp(key, "used") == 0)
        proc->used = strtoull(value, NULL, 10);
    else if (strcmp(key, "sm") == 0)
        proc->sm = (unsigned)atoi(value);
    else if (strcmp(key, "memory") == 0)
        proc->memory = (unsigned)atoi(value);
    else if (strcmp(key, "gi") == 0)
        proc->gi = atoi(value);
    else if (strcmp(key, "ci") == 0)
        proc->ci = atoi(value);
    else if (strcmp(key, "live") == 0)
        *life = strcmp(value, "0") == 0 ? INVENTED : strcmp(value, "lock") == 0 ? BY_LOCK : BY_PID;
}

/* A zombie has released its GPU. */
static int is_running(int pid)
{
    char path[32], text[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = '\0';
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && name_end[2] != 'Z' && name_end[2] != 'X';
}

static int is_alive(int file, int pid, enum life life)
{
    if (life == INVENTED)
        return 1;
    if (life == BY_LOCK)
        return flock(file, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    return is_running(pid);
}

static enum life parse(int file, struct sim_proc *proc)
{
    char text[1024];
    ssize_t length = read(file, text, sizeof text - 1);
    text[length > 0 ? length : 0] = '\0';
    memset(proc, 0, sizeof *proc);
    proc->gi = proc->ci = SIM_WHOLE_GPU;
    strcpy(proc->type, "C");
    enum life life = BY_PID;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest)) {
        char *equals = strchr(line, '=');
        if (!equals)
            continue;
        *equals = '\0';
        take(proc, &life, line, equals + 1);
    }
    return life;
}

/* 1 if the file describes a live process. */
static int read_proc(int directory, const char *name, struct sim_proc *proc)
{
    for (;;) {
        int file = openat(directory, name, O_RDONLY | O_CLOEXEC);
        if (file < 0)
            return 0;
        enum life life = parse(file, proc);
        int alive = is_alive(file, proc->pid, life);
        struct stat now;
        /* Its owner replaced the file in the meantime: the lock is on the new file. */
        int replaced = !alive && fstat(file, &now) == 0 && now.st_nlink == 0;
        close(file);
        if (!replaced)
            return alive;
    }
}

/* The GPU of a process file. Sets the instance if the file names a MIG device. */
static int gpu_of(const struct sim_state *state, struct sim_proc *proc)
{
    if (strncmp(proc->gpu, "MIG-", 4) != 0)
        return sim_gpu_by_uuid(state, proc->gpu);
    int mig, gpu = sim_mig_by_uuid(state, proc->gpu, &mig);
    if (gpu >= 0) {
        proc->gi = (int)sim_number(state, 0, "gpu.%d.mig.%d.gi", gpu, mig);
        proc->ci = (int)sim_number(state, 0, "gpu.%d.mig.%d.ci", gpu, mig);
    }
    return gpu;
}

static int wanted(int chosen, int actual)
{
    return chosen == SIM_WHOLE_GPU || chosen == actual;
}

static int by_pid(const void *a, const void *b)
{
    const struct sim_proc *left = a, *right = b;
    return (left->pid > right->pid) - (left->pid < right->pid);
}

int sim_procs_read(const struct sim_state *state, int gpu, int gi, int ci, struct sim_proc **list)
{
    *list = NULL;
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%s/state/procs", sim_state_directory(state)) >= PATH_MAX)
        return -1;
    DIR *directory = opendir(path);
    if (!directory)
        return errno == ENOENT ? 0 : -1;
    int count = 0, room = 0;
    struct dirent *file;
    while ((file = readdir(directory))) {
        struct sim_proc proc;
        if (file->d_name[0] == '.' || !read_proc(dirfd(directory), file->d_name, &proc))
            continue;
        if (gpu_of(state, &proc) != gpu || !wanted(gi, proc.gi) || !wanted(ci, proc.ci))
            continue;
        if (count == room) {
            room = room ? 2 * room : 16;
            struct sim_proc *grown = realloc(*list, (size_t)room * sizeof **list);
            if (!grown) {
                count = -1;
                break;
            }
            *list = grown;
        }
        (*list)[count++] = proc;
    }
    closedir(directory);
    if (count < 0) {
        free(*list);
        *list = NULL;
    } else if (count > 1)
        qsort(*list, (size_t)count, sizeof **list, by_pid);
    return count;
}

uint64_t sim_procs_used(const struct sim_state *state, int gpu, int gi, int ci)
{
    struct sim_proc *list;
    int count = sim_procs_read(state, gpu, gi, ci, &list);
    uint64_t used = 0;
    for (int i = 0; i < count; i++)
        used += list[i].used;
    free(list);
    return used;
}
