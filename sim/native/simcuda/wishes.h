/* What the client's own environment asks of MPS. */
#ifndef SIMCUDA_WISHES_H
#define SIMCUDA_WISHES_H

#include "cuda.h"

struct wishes {
    double percentage;      /* 0 if not set */
    bool per_context;       /* the percentage is read again for each context */
    bool drops_pinned;      /* one entry names a GPU we cannot see: no memory limit applies */
    int64_t pinned[MAX_DEVICES]; /* by ordinal, NO_LIMIT if none */
    int priority;           /* -1 if not set */
};

/* Reads the environment as libcuda does; what it cannot read is ignored with a warning. */
void read_wishes(struct wishes *wishes, const struct device_list *devices, int branch,
                 struct warnings *warnings);

/* The percentage variable as it stands now; 0 if unset or unreadable. */
double read_percentage(struct warnings *warnings);

#endif
