#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUCKETS = 4096, KEY_MAX_LENGTH = 512 };

struct entry {
    struct entry *next;
    char *value;
    char key[];
};

/* The part of a file that was read, to detect changes. `consumed` is the end of a whole line. */
struct source {
    const char *name;
    struct stat seen;
    off_t consumed;
};

struct sim_state {
    char directory[PATH_MAX];
    struct source node;
    struct source overrides;
    struct entry *buckets[BUCKETS];
};

static struct entry **find(const struct sim_state *state, const char *key)
{
    uint32_t hash = 2166136261u;
    for (const char *c = key; *c; c++)
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    struct entry **link = (struct entry **)&state->buckets[hash % BUCKETS];
    while (*link && strcmp((*link)->key, key) != 0)
        link = &(*link)->next;
    return link;
}

static int put(struct sim_state *state, const char *key, const char *value)
{
    char *copy = strdup(value);
    if (!copy)
        return -1;
    struct entry **link = find(state, key);
    if (*link) {
        free((*link)->value);
        (*link)->value = copy;
        return 0;
    }
    struct entry *entry = malloc(sizeof *entry + strlen(key) + 1);
    if (!entry) {
        free(copy);
        return -1;
    }
    strcpy(entry->key, key);
    entry->value = copy;
    entry->next = NULL;
    *link = entry;
    return 0;
}

static void clear(struct sim_state *state)
{
    for (int i = 0; i < BUCKETS; i++) {
        for (struct entry *entry = state->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            free(entry->value);
            free(entry);
        }
        state->buckets[i] = NULL;
    }
    state->node.consumed = state->overrides.consumed = 0;
}

static int path_of(const struct sim_state *state, const char *name, char *path)
{
    return snprintf(path, PATH_MAX, "%s/state/%s", state->directory, name) < PATH_MAX ? 0 : -1;
}

/* A missing file counts as empty. */
static int stat_source(const struct sim_state *state, const struct source *source, struct stat *now)
{
    char path[PATH_MAX];
    if (path_of(state, source->name, path) < 0)
        return -1;
    if (stat(path, now) == 0)
        return 0;
    memset(now, 0, sizeof *now);
    return errno == ENOENT ? 0 : -1;
}

static int same(const struct stat *a, const struct stat *b)
{
    return a->st_ino == b->st_ino && a->st_dev == b->st_dev && a->st_size == b->st_size &&
           a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

static int take_line(struct sim_state *state, char *line)
{
    char *equals = strchr(line, '=');
    if (*line == '#' || !equals)
        return 0;
    *equals = '\0';
    return put(state, line, equals + 1);
}

/* Reads from `consumed` to the last whole line, because the next line may be incomplete. */
static int consume(struct sim_state *state, struct source *source)
{
    char path[PATH_MAX];
    if (path_of(state, source->name, path) < 0)
        return -1;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return errno == ENOENT ? 0 : -1;
    char buffer[8192];
    ssize_t got;
    while ((got = pread(file, buffer, sizeof buffer - 1, source->consumed)) > 0) {
        buffer[got] = '\0';
        char *line = buffer, *end;
        for (; (end = memchr(line, '\n', (size_t)(buffer + got - line))); line = end + 1) {
            *end = '\0';
            if (take_line(state, line) < 0)
                break;
        }
        if (line == buffer)
            break;
        source->consumed += line - buffer;
    }
    close(file);
    return got < 0 ? -1 : 0;
}

static int reload(struct sim_state *state)
{
    clear(state);
    return consume(state, &state->node) < 0 || consume(state, &state->overrides) < 0 ? -1 : 0;
}

int sim_state_refresh(struct sim_state *state)
{
    struct stat node, overrides;
    if (stat_source(state, &state->node, &node) < 0 ||
        stat_source(state, &state->overrides, &overrides) < 0)
        return -1;
    if (node.st_ino == 0)
        return -1;
    int node_same = same(&node, &state->node.seen);
    if (node_same && same(&overrides, &state->overrides.seen))
        return 0;
    /* Usually lines were appended to the same file. */
    int grown = node_same && overrides.st_ino == state->overrides.seen.st_ino &&
                overrides.st_size > state->overrides.seen.st_size;
    state->node.seen = node;
    state->overrides.seen = overrides;
    return grown ? consume(state, &state->overrides) : reload(state);
}

struct sim_state *sim_state_open(const char *directory)
{
    struct sim_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->node.name = "node";
    state->overrides.name = "overrides";
    int length = snprintf(state->directory, sizeof state->directory, "%s", directory);
    if (length < (int)sizeof state->directory && sim_state_refresh(state) == 0)
        return state;
    sim_state_close(state);
    return NULL;
}

void sim_state_close(struct sim_state *state)
{
    if (!state)
        return;
    clear(state);
    free(state);
}

const char *sim_state_directory(const struct sim_state *state)
{
    return state->directory;
}

static const char *lookup(const struct sim_state *state, const char *format, va_list arguments)
{
    char key[KEY_MAX_LENGTH];
    vsnprintf(key, sizeof key, format, arguments);
    const struct entry *entry = *find(state, key);
    return entry && *entry->value ? entry->value : NULL;
}

const char *sim_text(const struct sim_state *state, const char *fallback, const char *key, ...)
{
    va_list arguments;
    va_start(arguments, key);
    const char *value = lookup(state, key, arguments);
    va_end(arguments);
    return value ? value : fallback;
}

int64_t sim_number(const struct sim_state *state, int64_t fallback, const char *key, ...)
{
    va_list arguments;
    va_start(arguments, key);
    const char *value = lookup(state, key, arguments);
    va_end(arguments);
    if (!value)
        return fallback;
    char *end;
    errno = 0;
    int64_t number = strtoll(value, &end, 0);
    return errno || *end ? fallback : number;
}

int sim_state_append(struct sim_state *state, const char *lines)
{
    char path[PATH_MAX];
    if (path_of(state, "overrides", path) < 0)
        return -1;
    int file = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0)
        return -1;
    ssize_t length = (ssize_t)strlen(lines);
    int result = write(file, lines, (size_t)length) == length ? 0 : -1;
    close(file);
    return result;
}

int sim_lock(const struct sim_state *state)
{
    char path[PATH_MAX];
    if (path_of(state, "lock", path) < 0)
        return -1;
    int lock = open(path, O_RDONLY | O_CREAT | O_CLOEXEC, 0666);
    if (lock < 0)
        return -1;
    while (flock(lock, LOCK_EX) < 0) {
        if (errno == EINTR)
            continue;
        close(lock);
        return -1;
    }
    return lock;
}

void sim_unlock(int lock)
{
    close(lock);
}

int sim_gpu_by_uuid(const struct sim_state *state, const char *uuid)
{
    int count = (int)sim_number(state, 0, "gpu.count");
    for (int gpu = 0; gpu < count; gpu++)
        if (strcmp(uuid, sim_text(state, "", "gpu.%d.uuid", gpu)) == 0)
            return gpu;
    return -1;
}

int sim_mig_by_uuid(const struct sim_state *state, const char *uuid, int *mig)
{
    int count = (int)sim_number(state, 0, "gpu.count");
    for (int gpu = 0; gpu < count; gpu++) {
        int devices = (int)sim_number(state, 0, "gpu.%d.mig.count", gpu);
        for (*mig = 0; *mig < devices; (*mig)++)
            if (strcmp(uuid, sim_text(state, "", "gpu.%d.mig.%d.uuid", gpu, *mig)) == 0)
                return gpu;
    }
    return -1;
}
