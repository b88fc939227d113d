/* MIG profiles and MIG devices of a GPU. */
#ifndef SIM_NVML_MIG_H
#define SIM_NVML_MIG_H

#include "library.h"

enum { MIG_PROFILES = 18, MIG_CI_PROFILES = 9, MIG_MAX_STARTS = 8 };

struct mig_profile {
    unsigned number; /* NVML_GPU_INSTANCE_PROFILE_... */
    unsigned id;     /* the id in `nvidia-smi mig -lgip` */
    unsigned slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
    unsigned size; /* memory slices of a placement */
    unsigned starts[MIG_MAX_STARTS], start_count;
    char name[32];
};

/* All return 1 on success, 0 if there is no such object. */
int mig_profile_by_number(const struct device *device, int number, struct mig_profile *profile);
int mig_profile_by_id(const struct device *device, unsigned id, struct mig_profile *profile);
int mig_profile_of(const struct device *device, int mig, struct mig_profile *profile);

int mig_count(const struct device *device);
int mig_gi_of(const struct device *device, int mig);
int mig_ci_of(const struct device *device, int mig);
unsigned mig_start_of(const struct device *device, int mig);
unsigned mig_ci_slices_of(const struct device *device, int mig);

/* The first MIG device of the GPU instance, or of its compute instance. -1 if there is none. */
int mig_by_instance(const struct device *device, int gi, int ci);

/* Number and id of the compute instance profile with this number of slices. */
unsigned mig_ci_profile(unsigned slices);

#endif
