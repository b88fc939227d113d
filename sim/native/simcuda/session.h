/* A CUDA process: through MPS if a daemon answers, else directly on the GPUs. */
#ifndef SIMCUDA_SESSION_H
#define SIMCUDA_SESSION_H

#include "cuda.h"
#include "local.h"
#include "mps.h"
#include "wishes.h"

struct session {
    bool uses_mps;
    struct mps mps;
    struct local local;
    struct device_list devices; /* what this process sees, by ordinal */
    struct wishes wishes;
    uint64_t context_bytes;
    struct warnings warnings;
    struct failure failure;
};

/* As cuInit and cuDeviceGetCount: -1 and session.failure if there is nothing to work with. */
int session_open(struct session *session);
void session_close(struct session *session);

int session_context(struct session *session, int ordinal, struct context *context);
int session_alloc(struct session *session, const struct context *context, uint64_t bytes);
int session_free_bytes(struct session *session, int ordinal, uint64_t *bytes);

/* As cuCtxSynchronize: finds out whether the context still works. */
int session_sync(struct session *session, const struct context *context);

/* A fatal fault in a kernel; always -1. */
int session_fault(struct session *session, const struct context *context);

#endif
