/* The state of the node: key=value lines of state/node, overridden by state/overrides. */
#ifndef SIM_STATE_H
#define SIM_STATE_H

#include <stddef.h>
#include <stdint.h>

struct sim_state;

/* Loads the state of the node in `directory`. NULL if it cannot be read. Not thread-safe. */
struct sim_state *sim_state_open(const char *directory);
void sim_state_close(struct sim_state *state);

/* Reads changes: two stat(2) if there are none. -1 if the node is missing (old values stay). */
int sim_state_refresh(struct sim_state *state);

const char *sim_state_directory(const struct sim_state *state);

/*
 * The value of a key, which is a printf format, or the fallback if the key is missing or empty.
 * A text is valid until the next refresh.
 */
const char *sim_text(const struct sim_state *state, const char *fallback, const char *key, ...)
    __attribute__((format(printf, 3, 4)));
int64_t sim_number(const struct sim_state *state, int64_t fallback, const char *key, ...)
    __attribute__((format(printf, 3, 4)));

/* Appends whole "key=value\n" lines to the overrides in one write(2). 0, or -1 with errno. */
int sim_state_append(struct sim_state *state, const char *lines);

/* Locks state/lock exclusively (blocks). Pass the descriptor to sim_unlock. -1 on error. */
int sim_lock(const struct sim_state *state);
void sim_unlock(int lock);

/* The index of the GPU with exactly this UUID, -1 if there is none. */
int sim_gpu_by_uuid(const struct sim_state *state, const char *uuid);

/* The GPU of this MIG device, -1 if there is none. *mig is set to its number on the GPU. */
int sim_mig_by_uuid(const struct sim_state *state, const char *uuid, int *mig);

#endif
