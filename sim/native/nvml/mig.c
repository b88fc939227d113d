#include "mig.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* gpu.<i>.mig.profile.<number>=id slices max sms MB ce dec enc jpeg ofa size starts name */
int mig_profile_by_number(const struct device *device, int number, struct mig_profile *profile)
{
    char key[32], starts[64];
    snprintf(key, sizeof key, "mig.profile.%d", number);
    memset(profile, 0, sizeof *profile);
    struct mig_profile *p = profile;
    int got = sscanf(gpu_text(device, key), "%u %u %u %u %llu %u %u %u %u %u %u %63s %31s", &p->id,
                     &p->slices, &p->instances, &p->sms, &p->memory_mb, &p->copy_engines,
                     &p->decoders, &p->encoders, &p->jpegs, &p->ofas, &p->size, starts, p->name);
    if (got != 13)
        return 0;
    p->number = (unsigned)number;
    char *rest = NULL;
    for (char *s = strtok_r(starts, ",", &rest); s; s = strtok_r(NULL, ",", &rest))
        if (p->start_count < MIG_MAX_STARTS)
            p->starts[p->start_count++] = (unsigned)atoi(s);
    return 1;
}

int mig_profile_by_id(const struct device *device, unsigned id, struct mig_profile *profile)
{
    for (int number = 0; number < MIG_PROFILES; number++)
        if (mig_profile_by_number(device, number, profile) && profile->id == id)
            return 1;
    return 0;
}

static int64_t mig_number(const struct device *device, int mig, const char *key, int64_t fallback)
{
    return sim_number(device->state, fallback, "gpu.%d.mig.%d.%s", device->gpu, mig, key);
}

int mig_profile_of(const struct device *device, int mig, struct mig_profile *profile)
{
    return mig_profile_by_number(device, (int)mig_number(device, mig, "profile", -1), profile);
}

int mig_count(const struct device *device)
{
    return gpu_mig_enabled(device) ? (int)gpu_number(device, "mig.count", 0) : 0;
}

int mig_gi_of(const struct device *device, int mig)
{
    return (int)mig_number(device, mig, "gi", -1);
}

int mig_ci_of(const struct device *device, int mig)
{
    return (int)mig_number(device, mig, "ci", -1);
}

unsigned mig_start_of(const struct device *device, int mig)
{
    return (unsigned)mig_number(device, mig, "start", 0);
}

unsigned mig_ci_slices_of(const struct device *device, int mig)
{
    struct mig_profile profile;
    int found = mig_profile_of(device, mig, &profile);
    return (unsigned)mig_number(device, mig, "ci_slices", found ? profile.slices : 0);
}

int mig_by_instance(const struct device *device, int gi, int ci)
{
    int count = mig_count(device);
    for (int mig = 0; mig < count; mig++)
        if (mig_gi_of(device, mig) == gi && (ci == WHOLE_GPU || mig_ci_of(device, mig) == ci))
            return mig;
    return -1;
}

unsigned mig_ci_profile(unsigned slices)
{
    static const unsigned numbers[] = {0, 0, 1, 2, 3, 0, 6, 4, 5};
    return slices < sizeof numbers / sizeof *numbers ? numbers[slices] : 0;
}
