/* The connection to an MPS server. gpuslice_sim/mps/wire.py describes the lines. */
#ifndef SIMCUDA_MPS_H
#define SIMCUDA_MPS_H

#include <stddef.h>

#include "cuda.h"

struct mps {
    int socket;
    char buffer[4096];
    size_t start, end;
    /* from the first line of the server */
    int server_pid;
    int client_pid; /* of this process, as the server sees it */
    int branch;
    double percentage;
    int priority;
    bool partitioned;
    uint64_t context_bytes;
};

/*
 * Connects through the pipe directory and waits for the first lines of the server.
 * 1: connected; 0: no daemon answers, so run without MPS; -1: rejected.
 */
int mps_connect(struct mps *mps, struct device_list *devices, struct failure *failure);
void mps_close(struct mps *mps);

/* Sends one line and writes the answer to `reply`. -1 if the answer is an error. */
int mps_call(struct mps *mps, char *reply, size_t size, struct failure *failure,
             const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Reads a line that is not an answer: always an error, or the end of the connection. */
int mps_take_error(struct mps *mps, struct failure *failure);

/* The value of a key in an answer, unescaped; false if missing or "-". */
bool mps_field(const char *line, const char *key, char *value, size_t size);
int64_t mps_number(const char *line, const char *key, int64_t fallback);

#endif
