/* GPU instances and compute instances: profiles, placements, existing instances. */
#include <stdio.h>
#include <string.h>

#include "mig.h"

static int find_profile(const struct device *device, unsigned number, struct mig_profile *profile)
{
    NEED(number < MIG_PROFILES);
    return mig_profile_by_number(device, (int)number, profile) ? NVML_SUCCESS : NVML_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfo(nvml_device handle, unsigned number,
                                             struct gi_profile *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    struct mig_profile p;
    int status = find_profile(&device, number, &p);
    if (status == NVML_SUCCESS)
        *out = (struct gi_profile){p.id,           0,          p.slices,   p.instances, p.sms,
                                   p.copy_engines, p.decoders, p.encoders, p.jpegs,     p.ofas,
                                   p.memory_mb};
    return status;
}

static int give_versioned_profile(const struct mig_profile *p, void *out)
{
    unsigned version = *(unsigned *)out;
    char full_name[sizeof p->name + 4];
    snprintf(full_name, sizeof full_name, "MIG %s", p->name);
    if (version == STRUCT_VERSION(struct gi_profile_v2, 2)) {
        struct gi_profile_v2 *info = out;
        *info = (struct gi_profile_v2){
            version,     p->id,       0,        p->slices, p->instances, p->sms, p->copy_engines,
            p->decoders, p->encoders, p->jpegs, p->ofas,   p->memory_mb, ""};
        strcpy(info->name, full_name);
    } else if (version == STRUCT_VERSION(struct gi_profile_v3, 3)) {
        struct gi_profile_v3 *info = out;
        *info = (struct gi_profile_v3){version,  p->id,           p->slices,    p->instances,
                                       p->sms,   p->copy_engines, p->decoders,  p->encoders,
                                       p->jpegs, p->ofas,         p->memory_mb, "",
                                       0};
        strcpy(info->name, full_name);
    } else
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfoV(nvml_device handle, unsigned number, void *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    struct mig_profile p;
    int status = find_profile(&device, number, &p);
    return status == NVML_SUCCESS ? give_versioned_profile(&p, out) : status;
}

NVML_API nvmlDeviceGetGpuInstanceProfileInfoByIdV(nvml_device handle, unsigned id, void *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    struct mig_profile p;
    return mig_profile_by_id(&device, id, &p) ? give_versioned_profile(&p, out)
                                              : NVML_NOT_SUPPORTED;
}

NVML_API nvmlDeviceGetGpuInstancePossiblePlacements_v2(nvml_device handle, unsigned id,
                                                       struct placement *out, unsigned *count)
{
    WITH_GPU(handle, device);
    NEED(count);
    struct mig_profile p;
    if (!mig_profile_by_id(&device, id, &p))
        return NVML_NOT_SUPPORTED;
    unsigned room = *count;
    *count = p.start_count;
    if (!out)
        return NVML_SUCCESS;
    if (room < p.start_count)
        return NVML_INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < p.start_count; i++)
        out[i] = (struct placement){p.starts[i], p.size};
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstancePossiblePlacements(nvml_device handle, unsigned id,
                                                    struct placement *out, unsigned *count)
{
    return nvmlDeviceGetGpuInstancePossiblePlacements_v2(handle, id, out, count);
}

/* One bit for each memory slice that GPU instances use. */
static unsigned occupied(const struct device *device)
{
    unsigned bits = 0;
    for (int mig = 0; mig < mig_count(device); mig++) {
        struct mig_profile p;
        if (mig_profile_of(device, mig, &p))
            bits |= ((1u << p.size) - 1) << mig_start_of(device, mig);
    }
    return bits;
}

NVML_API nvmlDeviceGetGpuInstanceRemainingCapacity(nvml_device handle, unsigned id, unsigned *count)
{
    WITH_GPU(handle, device);
    NEED(count);
    struct mig_profile p;
    if (!gpu_mig_enabled(&device) || !mig_profile_by_id(&device, id, &p))
        return NVML_NOT_SUPPORTED;
    unsigned taken = occupied(&device);
    *count = 0;
    for (unsigned i = 0; i < p.start_count && *count < p.instances; i++) {
        unsigned bits = ((1u << p.size) - 1) << p.starts[i];
        if (taken & bits)
            continue;
        taken |= bits;
        (*count)++;
    }
    return NVML_SUCCESS;
}

/* The first device of its GPU instance, so that each instance is listed once. */
static int leads_instance(const struct device *device, int mig)
{
    return mig_by_instance(device, mig_gi_of(device, mig), WHOLE_GPU) == mig;
}

NVML_API nvmlDeviceGetGpuInstances(nvml_device handle, unsigned id, nvml_instance *out,
                                   unsigned *count)
{
    WITH_GPU(handle, device);
    NEED(out && count);
    if (!gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    *count = 0;
    for (int mig = 0; mig < mig_count(&device); mig++) {
        struct mig_profile p;
        if (leads_instance(&device, mig) && mig_profile_of(&device, mig, &p) && p.id == id)
            out[(*count)++] = library_instance(device.gpu, mig_gi_of(&device, mig), WHOLE_GPU);
    }
    return NVML_SUCCESS;
}

NVML_API nvmlDeviceGetGpuInstanceById(nvml_device handle, unsigned id, nvml_instance *out)
{
    WITH_GPU(handle, device);
    NEED(out);
    if (!gpu_mig_enabled(&device))
        return NVML_NOT_SUPPORTED;
    if (mig_by_instance(&device, (int)id, WHOLE_GPU) < 0)
        return NVML_NOT_FOUND;
    *out = library_instance(device.gpu, (int)id, WHOLE_GPU);
    return *out ? NVML_SUCCESS : NVML_MEMORY;
}

/* The MIG device of an instance handle. The layout may have changed. */
static int resolve(const struct instance *instance, struct sim_state *state, struct device *device,
                   struct mig_profile *profile)
{
    *device = (struct device){state, instance->gpu, WHOLE_GPU};
    device->mig = mig_by_instance(device, instance->gi, instance->ci);
    return device->mig >= 0 && mig_profile_of(device, device->mig, profile) ? NVML_SUCCESS
                                                                            : NVML_NOT_FOUND;
}

#define WITH_MIG(handle, instance, device, profile)                                                \
    WITH_INSTANCE(handle, instance, state_);                                                       \
    struct device device;                                                                          \
    struct mig_profile profile;                                                                    \
    do {                                                                                           \
        int status_ = resolve(&instance, state_, &device, &profile);                               \
        if (status_ != NVML_SUCCESS)                                                               \
            return status_;                                                                        \
    } while (0)

NVML_API nvmlGpuInstanceGetInfo(nvml_instance handle, struct gi_info *out)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out);
    *out = (struct gi_info){library_by_gpu(device.gpu),
                            (unsigned)instance.gi,
                            p.id,
                            {mig_start_of(&device, device.mig), p.size}};
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetComputeInstanceById(nvml_instance handle, unsigned id,
                                               nvml_instance *out)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out);
    if (mig_by_instance(&device, instance.gi, (int)id) < 0)
        return NVML_NOT_FOUND;
    *out = library_instance(instance.gpu, instance.gi, (int)id);
    return *out ? NVML_SUCCESS : NVML_MEMORY;
}

NVML_API nvmlGpuInstanceGetComputeInstances(nvml_instance handle, unsigned profile,
                                            nvml_instance *out, unsigned *count)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out && count);
    *count = 0;
    for (int mig = 0; mig < mig_count(&device); mig++) {
        if (mig_gi_of(&device, mig) != instance.gi)
            continue;
        if (mig_ci_profile(mig_ci_slices_of(&device, mig)) == profile)
            out[(*count)++] = library_instance(instance.gpu, instance.gi, mig_ci_of(&device, mig));
    }
    return NVML_SUCCESS;
}

/* Compute instance profiles of a GPU instance: those of 1, 2, 3, 4 and 7 slices that fit. */
static int ci_profile(const struct mig_profile *gi, unsigned number, unsigned engine,
                      struct ci_profile *out)
{
    static const unsigned slices[MIG_CI_PROFILES] = {1, 2, 3, 4, 7, 8, 6, 0, 0};
    NEED(number < MIG_CI_PROFILES && engine == 0);
    unsigned wanted = slices[number];
    if (wanted == 0 || wanted > gi->slices)
        return NVML_NOT_SUPPORTED;
    *out = (struct ci_profile){
        number,           wanted,       gi->slices / wanted, gi->sms * wanted / gi->slices,
        gi->copy_engines, gi->decoders, gi->encoders,        gi->jpegs,
        gi->ofas};
    return NVML_SUCCESS;
}

NVML_API nvmlGpuInstanceGetComputeInstanceProfileInfo(nvml_instance handle, unsigned number,
                                                      unsigned engine, struct ci_profile *out)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out);
    return ci_profile(&p, number, engine, out);
}

static void name_ci(const struct mig_profile *gi, unsigned slices, char *name)
{
    if (slices == gi->slices)
        snprintf(name, NAME_SIZE, "MIG %s", gi->name);
    else
        snprintf(name, NAME_SIZE, "MIG %uc.%s", slices, gi->name);
}

NVML_API nvmlGpuInstanceGetComputeInstanceProfileInfoV(nvml_instance handle, unsigned number,
                                                       unsigned engine, void *out)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out);
    struct ci_profile c;
    int status = ci_profile(&p, number, engine, &c);
    if (status != NVML_SUCCESS)
        return status;
    unsigned version = *(unsigned *)out;
    if (version == STRUCT_VERSION(struct ci_profile_v2, 2)) {
        struct ci_profile_v2 *info = out;
        *info = (struct ci_profile_v2){version, c.id,           c.slices,   c.instances,
                                       c.sms,   c.copy_engines, c.decoders, c.encoders,
                                       c.jpegs, c.ofas,         ""};
        name_ci(&p, c.slices, info->name);
    } else if (version == STRUCT_VERSION(struct ci_profile_v3, 3)) {
        struct ci_profile_v3 *info = out;
        *info = (struct ci_profile_v3){version, c.id,           c.slices,   c.instances,
                                       c.sms,   c.copy_engines, c.decoders, c.encoders,
                                       c.jpegs, c.ofas,         "",         0};
        name_ci(&p, c.slices, info->name);
    } else
        return NVML_ARGUMENT_VERSION_MISMATCH;
    return NVML_SUCCESS;
}

NVML_API nvmlComputeInstanceGetInfo_v2(nvml_instance handle, struct ci_info *out)
{
    WITH_MIG(handle, instance, device, p);
    NEED(out);
    unsigned slices = mig_ci_slices_of(&device, device.mig);
    *out = (struct ci_info){library_by_gpu(device.gpu),
                            library_instance(instance.gpu, instance.gi, WHOLE_GPU),
                            (unsigned)instance.ci,
                            mig_ci_profile(slices),
                            {(unsigned)instance.ci * slices, slices}};
    return NVML_SUCCESS;
}

NVML_API nvmlComputeInstanceGetInfo(nvml_instance handle, struct ci_info *out)
{
    return nvmlComputeInstanceGetInfo_v2(handle, out);
}
