/* Types of all parts of simcuda: devices, contexts, failures. */
#ifndef SIMCUDA_CUDA_H
#define SIMCUDA_CUDA_H

#include <stdbool.h>
#include <stdint.h>

enum { MAX_DEVICES = 64, MAX_CONTEXTS = 256, MAX_WARNINGS = 8 };
enum { NO_LIMIT = -1 };

struct device {
    int index; /* in NVML order on the node */
    int minor; /* N of /dev/nvidiaN */
    int mig;   /* number of the MIG device on its GPU, -1 for a whole GPU */
    int gi;    /* its GPU instance, -1 for a whole GPU */
    char uuid[96];
    char name[128];
    uint64_t total_bytes;
    int sms;
    int64_t limit_bytes; /* of the server, NO_LIMIT if none */
};

struct device_list {
    struct device items[MAX_DEVICES];
    int count;
};

struct context {
    int id;
    int ordinal;
    int sms;
    double percentage;
    int64_t limit_bytes; /* the effective limit of server and client */
};

struct failure {
    char name[64]; /* "CUDA_ERROR_…", empty without a failure */
    char text[256];
};

struct warnings {
    char items[MAX_WARNINGS][256];
    int count;
};

/* Records why a call failed and returns -1, so that callers can return it. */
int fail(struct failure *failure, const char *name, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

void warn(struct warnings *warnings, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
