#include "client_env.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "visible.h"

enum { FIRST_BRANCH_WITH_UUIDS = 560, BRANCH_TAKES_KIB = 615 };

double read_percentage(struct warnings *warnings)
{
    const char *text = getenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE");
    if (!text)
        return 0;
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !(value > 0 && value <= 100)) {
        warn(warnings, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%s ignored: not a number from 1 to 100",
             text);
        return 0;
    }
    return value;
}

/* An integer with a binary unit. -1 if it is not valid. */
static int64_t parse_limit(const char *text, int branch)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    if (end == text || *text == '-' || errno || number == 0)
        return -1;
    int shift = *end == 'G' ? 30 : *end == 'M' ? 20 : *end == 'K' ? 10 : 0;
    if (!shift || (shift == 10 && branch < BRANCH_TAKES_KIB) || number > (UINT64_MAX >> 1) >> shift)
        return -1;
    end++;
    if (*end == 'B')
        end++;
    return *end ? -1 : (int64_t)(number << shift);
}

/* 0 if the entry was applied or skipped, -1 if it is not valid. */
static int take_entry(struct client_env *env, const struct device_list *devices, int branch,
                      char *entry, struct warnings *warnings)
{
    char *equals = strchr(entry, '=');
    if (!equals || equals == entry)
        return -1;
    *equals = '\0';
    int64_t limit = parse_limit(equals + 1, branch);
    if (limit < 0)
        return -1;
    bool by_number = entry[strspn(entry, "0123456789")] == '\0';
    if (!by_number && branch < FIRST_BRANCH_WITH_UUIDS) {
        warn(warnings, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT: driver branch %d does not apply the limit "
             "of %s: name the device by number", branch, entry);
        return 0;
    }
    int ordinal = find_device(devices, entry);
    if (ordinal < 0) {
        env->drops_pinned = true;
        warn(warnings, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT names device %s, which this process "
             "cannot see: no memory limit applies, not even the server's", entry);
        return 0;
    }
    env->pinned[ordinal] = limit;
    return 0;
}

static void forget_pinned(struct client_env *env)
{
    env->drops_pinned = false;
    for (int i = 0; i < MAX_DEVICES; i++)
        env->pinned[i] = NO_LIMIT;
}

static void read_pinned(struct client_env *env, const struct device_list *devices, int branch,
                        struct warnings *warnings)
{
    const char *text = getenv("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT");
    forget_pinned(env);
    if (!text)
        return;
    char copy[4096], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", text);
    bool any = false;
    for (char *entry = strtok_r(copy, ", ", &rest); entry; entry = strtok_r(NULL, ", ", &rest)) {
        any = true;
        if (take_entry(env, devices, branch, entry, warnings) < 0) {
            any = false;
            break;
        }
    }
    if (!any) {
        forget_pinned(env);
        warnings->count = 0;
        warn(warnings, "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=%s ignored: not a list of "
             "device=<number>M or G", text);
    }
}

static int read_priority(struct warnings *warnings)
{
    const char *text = getenv("CUDA_MPS_CLIENT_PRIORITY");
    if (!text)
        return -1;
    if (strcmp(text, "0") == 0 || strcmp(text, "1") == 0)
        return *text - '0';
    warn(warnings, "CUDA_MPS_CLIENT_PRIORITY=%s ignored: neither 0 nor 1", text);
    return -1;
}

void read_client_env(struct client_env *env, const struct device_list *devices, int branch,
                 struct warnings *warnings)
{
    const char *per_context = getenv("CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING");
    read_pinned(env, devices, branch, warnings);
    env->per_context = per_context && strcmp(per_context, "1") == 0;
    env->percentage = read_percentage(warnings);
    env->priority = read_priority(warnings);
}
