#include "session.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "visible.h"

static int send_limits(struct session *session)
{
    char list[6144] = "", reply[256];
    size_t length = 0;
    for (int i = 0; i < session->devices.count; i++)
        if (session->env.pinned[i] != NO_LIMIT)
            length += (size_t)snprintf(list + length, sizeof list - length, "%s%s:%lld",
                                       length ? "," : "", session->devices.items[i].uuid,
                                       (long long)session->env.pinned[i]);
    return mps_call(&session->mps, reply, sizeof reply, &session->failure,
                    "config limits=%s dropped=%d", *list ? list : "-",
                    session->env.drops_pinned);
}

static int choose_devices(struct session *session)
{
    keep_chosen(&session->devices);
    if (session->devices.count)
        return 0;
    return fail(&session->failure, "CUDA_ERROR_NO_DEVICE",
                session->uses_mps || session->local.state
                    ? "no CUDA-capable device is visible"
                    : "no MPS daemon answers and no simulated node is reachable");
}

static int open_mps(struct session *session)
{
    session->context_bytes = session->mps.context_bytes;
    if (choose_devices(session) < 0)
        return -1;
    read_client_env(&session->env, &session->devices, session->mps.branch, &session->warnings);
    if (getenv("CUDA_MPS_SM_PARTITION") && !session->mps.partitioned)
        warn(&session->warnings, "CUDA_MPS_SM_PARTITION ignored: the daemon has no partitions");
    return send_limits(session);
}

static int open_local(struct session *session)
{
    local_devices(&session->local, &session->devices);
    keep_injected(&session->devices);
    session->context_bytes = local_context_bytes(&session->local);
    return choose_devices(session);
}

int session_open(struct session *session)
{
    memset(session, 0, sizeof *session);
    session->mps.socket = -1;
    local_open(&session->local);
    if (!has_gpus())
        return fail(&session->failure, "CUDA_ERROR_NO_DEVICE",
                    "the container has no GPU: NVIDIA_VISIBLE_DEVICES is \"%s\" and there is no "
                    "/dev/nvidiaN", getenv("NVIDIA_VISIBLE_DEVICES"));
    int connected = mps_connect(&session->mps, &session->devices, &session->failure);
    session->uses_mps = connected != 0;
    if (connected < 0)
        return -1;
    return connected ? open_mps(session) : open_local(session);
}

void session_close(struct session *session)
{
    mps_close(&session->mps);
    local_close(&session->local, &session->devices);
}

static int mps_context(struct session *session, const struct device *device,
                       struct context *context)
{
    if (session->env.per_context)
        session->env.percentage = read_percentage(&session->warnings);
    char wanted[32] = "-", reply[512], text[32] = "100";
    if (session->env.percentage > 0)
        snprintf(wanted, sizeof wanted, "%g", session->env.percentage);
    if (mps_call(&session->mps, reply, sizeof reply, &session->failure,
                 "context device=%s percentage=%s", device->uuid, wanted) < 0)
        return -1;
    context->id = (int)mps_number(reply, "id", 0);
    context->sms = (int)mps_number(reply, "sms", 0);
    context->limit_bytes = mps_number(reply, "limit", NO_LIMIT);
    mps_field(reply, "percentage", text, sizeof text);
    context->percentage = strtod(text, NULL);
    return 0;
}

int session_context(struct session *session, int ordinal, struct context *context)
{
    memset(context, 0, sizeof *context);
    context->ordinal = ordinal;
    if (ordinal < 0 || ordinal >= session->devices.count)
        return fail(&session->failure, "CUDA_ERROR_INVALID_DEVICE",
                    "device %d does not exist: the process sees %d", ordinal,
                    session->devices.count);
    const struct device *device = &session->devices.items[ordinal];
    if (session->uses_mps)
        return mps_context(session, device, context);
    context->sms = device->sms;
    context->percentage = 100;
    context->limit_bytes = NO_LIMIT;
    return local_context(&session->local, device, ordinal, &session->warnings, &session->failure);
}

int session_alloc(struct session *session, const struct context *context, uint64_t bytes)
{
    char reply[256];
    if (session->uses_mps)
        return mps_call(&session->mps, reply, sizeof reply, &session->failure,
                        "alloc context=%d bytes=%llu", context->id, (unsigned long long)bytes);
    return local_alloc(&session->local, &session->devices.items[context->ordinal],
                       context->ordinal, bytes, &session->failure);
}

int session_free_bytes(struct session *session, int ordinal, uint64_t *bytes)
{
    const struct device *device = &session->devices.items[ordinal];
    char reply[256];
    if (!session->uses_mps) {
        *bytes = local_free_bytes(&session->local, device, ordinal);
        return 0;
    }
    if (mps_call(&session->mps, reply, sizeof reply, &session->failure, "query device=%s",
                 device->uuid) < 0)
        return -1;
    *bytes = (uint64_t)mps_number(reply, "free", 0);
    return 0;
}

int session_sync(struct session *session, const struct context *context)
{
    char reply[256];
    if (session->uses_mps)
        return mps_call(&session->mps, reply, sizeof reply, &session->failure, "sync");
    return local_check(&session->local, &session->devices.items[context->ordinal],
                       &session->failure);
}

int session_fault(struct session *session, const struct context *context)
{
    char reply[256];
    const struct device *device = &session->devices.items[context->ordinal];
    if (session->uses_mps)
        return mps_call(&session->mps, reply, sizeof reply, &session->failure, "fault device=%s",
                        device->uuid);
    return fail(&session->failure, "CUDA_ERROR_LAUNCH_FAILED", "a kernel faulted on %s",
                device->uuid);
}
