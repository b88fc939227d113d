/* A CUDA process: through MPS if a daemon answers, otherwise directly on the GPUs. */
#ifndef SIMCUDA_SESSION_H
#define SIMCUDA_SESSION_H

#include "cuda.h"
#include "local.h"
#include "mps.h"
#include "client_env.h"

struct session {
    bool uses_mps;
    struct mps mps;
    struct local local;
    struct device_list devices; /* visible to this process, by ordinal */
    struct client_env env;
    uint64_t context_bytes;
    struct warnings warnings;
    struct failure failure;
};

/* Like cuInit and cuDeviceGetCount: -1 and session.failure if there are no devices. */
int session_open(struct session *session);
void session_close(struct session *session);

int session_context(struct session *session, int ordinal, struct context *context);
int session_alloc(struct session *session, const struct context *context, uint64_t bytes);
int session_free_bytes(struct session *session, int ordinal, uint64_t *bytes);

/* Like cuCtxSynchronize: checks whether the context still works. */
int session_sync(struct session *session, const struct context *context);

/* A fatal fault in a kernel. Always returns -1. */
int session_fault(struct session *session, const struct context *context);

#endif
