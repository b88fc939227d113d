/* The MPS settings in the environment of the client. */
#ifndef SIMCUDA_CLIENT_ENV_H
#define SIMCUDA_CLIENT_ENV_H

#include "cuda.h"

struct client_env {
    double percentage;      /* 0 if not set */
    bool per_context;       /* the percentage is read again for each context */
    bool drops_pinned;      /* an entry names a GPU that is not visible: no memory limit applies */
    int64_t pinned[MAX_DEVICES]; /* by ordinal, NO_LIMIT if none */
    int priority;           /* -1 if not set */
};

/* Reads the environment like libcuda. Invalid values are ignored with a warning. */
void read_client_env(struct client_env *env, const struct device_list *devices, int branch,
                 struct warnings *warnings);

/* The current value of the percentage variable. 0 if it is unset or not valid. */
double read_percentage(struct warnings *warnings);

#endif
