/* Common to all parts of the driver library: the lock, the state and handles. */
#ifndef SIM_NVML_LIBRARY_H
#define SIM_NVML_LIBRARY_H

#include <stdint.h>

#include "api.h"
#include "state.h"

enum { MAX_GPUS = 64, WHOLE_GPU = -1, NO_GPU = -1 };

/* A resolved device handle: the record of a GPU, and a MIG device of it or WHOLE_GPU. */
struct device {
    struct sim_state *state;
    int gpu;
    int mig;
};

/* Every entry point holds the lock of the library until it returns. */
#define HOLD_LOCK __attribute__((cleanup(library_leave))) int held_ = 0

#define WITH_LIBRARY(state)                                                                        \
    HOLD_LOCK;                                                                                     \
    struct sim_state *state;                                                                       \
    do {                                                                                           \
        int status_ = library_enter(&held_, &state, __func__);                                     \
        if (status_ != NVML_SUCCESS)                                                               \
            return status_;                                                                        \
    } while (0)

/* A GPU or a MIG device. */
#define WITH_DEVICE(handle, name) WITH_DEVICE_FOR(handle, name, __func__)

/* `call`: the function that the program called, if a helper implements it. */
#define WITH_DEVICE_FOR(handle, name, call)                                                        \
    HOLD_LOCK;                                                                                     \
    struct device name;                                                                            \
    do {                                                                                           \
        int status_ = library_enter_device(&held_, handle, &name, call);                           \
        if (status_ != NVML_SUCCESS)                                                               \
            return status_;                                                                        \
    } while (0)

/* A GPU, for values that MIG devices do not have. */
#define WITH_GPU(handle, name)                                                                     \
    WITH_DEVICE(handle, name);                                                                     \
    if (name.mig != WHOLE_GPU)                                                                     \
    return NVML_NOT_SUPPORTED

#define NEED(condition)                                                                            \
    do {                                                                                           \
        if (!(condition))                                                                          \
            return NVML_INVALID_ARGUMENT;                                                          \
    } while (0)

int library_enter(int *held, struct sim_state **state, const char *call);
int library_enter_device(int *held, nvml_device handle, struct device *device, const char *call);
void library_leave(int *held);

/* Like library_enter, but also valid before nvmlInit. */
int library_enter_uninitialized(int *held, struct sim_state **state);

int library_init(void);
int library_shutdown(void);

/* For the wait, which must not block other calls: releases the lock, and acquires it again. */
void library_pause(void);
void library_resume(void);

/* Returns when no fault makes this call hang any more. `gpu` is NO_GPU for calls without a GPU.
 * Releases the lock in between, so that other calls continue. */
void library_hang(const char *call, int gpu);
int library_is_initialized(void);
struct sim_state *library_state(void);

/* The enumeration at nvmlInit. */
int library_count(void);
int library_gpu_at(int index);
int library_index_of(int gpu);
int library_gpu_of(nvml_device handle); /* -1 if it is not the handle of a GPU */
nvml_device library_by_gpu(int gpu);
nvml_device library_mig_handle(int gpu, const char *uuid);
nvml_instance library_instance(int gpu, int gi, int ci);

/* GPU and compute instances; ci is WHOLE_GPU for a GPU instance. */
struct instance {
    struct instance *next;
    int gpu, gi, ci;
};

int library_enter_instance(int *held, nvml_instance handle, struct instance *instance,
                           struct sim_state **state, const char *call);

#define WITH_INSTANCE(handle, name, state)                                                         \
    HOLD_LOCK;                                                                                     \
    struct instance name;                                                                          \
    struct sim_state *state;                                                                       \
    do {                                                                                           \
        int status_ = library_enter_instance(&held_, handle, &name, &state, __func__);             \
        if (status_ != NVML_SUCCESS)                                                               \
            return status_;                                                                        \
    } while (0)

/* GPU_IS_LOST if the GPU cannot be reached. */
int gpu_status(const struct sim_state *state, int gpu);

/* Values of a GPU record: gpu.<i>.<key>. */
const char *gpu_text(const struct device *device, const char *key);
int64_t gpu_number(const struct device *device, const char *key, int64_t fallback);
int gpu_has(const struct device *device, const char *key);
int gpu_arch(const struct device *device);
int gpu_mig_enabled(const struct device *device);
int driver_branch(const struct sim_state *state);

/* Returns INSUFFICIENT_SIZE if the text does not fit. */
int give_text(const char *text, char *out, unsigned length);

/* Root, as with the real driver, or the user who created the node. */
int may_administer(const struct sim_state *state);

/* Stores gpu.<i>.<key>=<value> for all processes. Requires an administrator. */
int gpu_set(const struct device *device, const char *key, int64_t value);

/* An unsigned value of the record. NOT_SUPPORTED if the GPU does not have the key. */
#define give_number(handle, key, out) give_number_for(handle, key, out, __func__)
int give_number_for(nvml_device handle, const char *key, unsigned *out, const char *call);

#endif
