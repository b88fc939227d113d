/* Prints the result as a JSON object. */
#ifndef SIMCUDA_REPORT_H
#define SIMCUDA_REPORT_H

#include "options.h"
#include "session.h"

/* The result for one device. */
struct use {
    int ordinal;
    bool has_context;
    struct context first;    /* the first context */
    uint64_t free_bytes;
    uint64_t context_bytes;  /* of all contexts */
};

struct run {
    struct use uses[MAX_DEVICES];
    int use_count;
    struct context contexts[MAX_CONTEXTS];
    int context_count;
    uint64_t allocated_bytes; /* on the first device */
};

void print_report(const struct options *options, const struct session *session,
                  const struct run *run);

#endif
