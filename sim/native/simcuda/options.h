/* The command line. */
#ifndef SIMCUDA_OPTIONS_H
#define SIMCUDA_OPTIONS_H

#include "cuda.h"

enum command { INFO, ALLOC, FILL, HOLD, FAULT };

struct options {
    enum command command;
    int devices[MAX_DEVICES]; /* ordinals */
    int device_count;         /* 0: info shows all, other commands use device 0 */
    bool all_devices;
    int contexts;             /* on each device */
    const char *percentages[MAX_CONTEXTS]; /* values of the variable before each context */
    int percentage_count;
    uint64_t bytes;           /* alloc SIZE, hold --alloc SIZE */
    uint64_t step;
    bool pretty;
    bool until_eof;
    bool linger;
};

/* 0: continue; 1: help was printed; -1: not valid, with a message on stderr. */
int read_options(struct options *options, int argc, char **argv);

const char *command_name(enum command command);

#endif
