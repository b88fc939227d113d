/* MIG profiles of a GPU and the devices made of them. */
#ifndef SIM_NVML_MIG_H
#define SIM_NVML_MIG_H

#include "library.h"

enum { MIG_PROFILES = 18, MIG_CI_PROFILES = 9, MIG_MAX_STARTS = 8 };

struct mig_profile {
    unsigned number; /* NVML_GPU_INSTANCE_PROFILE_... */
    unsigned id;     /* as `nvidia-smi mig -lgip` shows it */
    unsigned slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
    unsigned size; /* memory slices that a placement takes */
    unsigned starts[MIG_MAX_STARTS], start_count;
    char name[32];
};

/* All answer 1 on success, 0 if there is no such thing. */
int mig_profile_by_number(const struct device *device, int number, struct mig_profile *profile);
int mig_profile_by_id(const struct device *device, unsigned id, struct mig_profile *profile);
int mig_profile_of(const struct device *device, int mig, struct mig_profile *profile);

int mig_count(const struct device *device);
int mig_gi_of(const struct device *device, int mig);
int mig_ci_of(const struct device *device, int mig);
unsigned mig_start_of(const struct device *device, int mig);
unsigned mig_ci_slices_of(const struct device *device, int mig);

/* The first MIG device in the GPU instance, or in its compute instance; -1 if there is none. */
int mig_by_instance(const struct device *device, int gi, int ci);

/* Number and id of the compute instance profile with that many slices. */
unsigned mig_ci_profile(unsigned slices);

#endif
