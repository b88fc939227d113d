#include "visible.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool is_number(const char *text)
{
    return *text && text[strspn(text, "0123456789")] == '\0';
}

int find_device(const struct device_list *devices, const char *key)
{
    if (is_number(key)) {
        long ordinal = strtol(key, NULL, 10);
        return ordinal < devices->count ? (int)ordinal : -1;
    }
    int found = -1;
    for (int i = 0; *key && i < devices->count; i++) {
        if (strncmp(devices->items[i].uuid, key, strlen(key)) != 0)
            continue;
        if (found >= 0)
            return -1;
        found = i;
    }
    return found;
}

static bool has_node(int minor)
{
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", minor);
    return access(path, F_OK) == 0;
}

static bool has_any_node(void)
{
    for (int minor = 0; minor < MAX_DEVICES; minor++)
        if (has_node(minor))
            return true;
    return false;
}

static bool is_void(const char *list)
{
    return list && strcmp(list, "void") == 0;
}

static bool is_nothing(const char *list)
{
    return list && (!*list || is_void(list) || strcmp(list, "none") == 0);
}

bool has_gpus(void)
{
    return !is_nothing(getenv("NVIDIA_VISIBLE_DEVICES")) || has_any_node();
}

/* NVIDIA_VISIBLE_DEVICES names GPUs by index or UUID, MIG devices by "gpu:mig" or UUID. */
static bool names(const char *list, const struct device *device)
{
    char copy[4096], place[32], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    snprintf(place, sizeof place, device->mig < 0 ? "%d" : "%d:%d", device->index, device->mig);
    for (char *word = strtok_r(copy, ",", &rest); word; word = strtok_r(NULL, ",", &rest))
        if (strcmp(word, place) == 0 || strcmp(word, device->uuid) == 0)
            return true;
    return false;
}

static bool is_injected(const char *list, const struct device *device)
{
    if (is_void(list))
        return has_node(device->minor); /* CDI injects the nodes and sets the variable to "void" */
    if (is_nothing(list))
        return false;
    return !list || strcmp(list, "all") == 0 || names(list, device);
}

void keep_injected(struct device_list *devices)
{
    const char *list = getenv("NVIDIA_VISIBLE_DEVICES");
    int kept = 0;
    for (int i = 0; i < devices->count; i++)
        if (is_injected(list, &devices->items[i]))
            devices->items[kept++] = devices->items[i];
    devices->count = kept;
}

static void keep_one_mig(struct device_list *devices)
{
    int kept = 0;
    bool one = devices->count && devices->items[0].mig >= 0;
    for (int i = 0; i < devices->count; i++)
        if (one ? i == 0 : devices->items[i].mig < 0)
            devices->items[kept++] = devices->items[i];
    devices->count = kept;
}

static void choose(struct device_list *devices, const char *list)
{
    struct device_list chosen = {.count = 0};
    bool taken[MAX_DEVICES] = {false};
    char copy[4096], *rest = NULL;
    snprintf(copy, sizeof copy, "%s", list);
    for (char *word = strtok_r(copy, ", ", &rest); word; word = strtok_r(NULL, ", ", &rest)) {
        int ordinal = find_device(devices, word);
        if (ordinal < 0)
            break;
        if (taken[ordinal]) {
            chosen.count = 0;
            break;
        }
        taken[ordinal] = true;
        chosen.items[chosen.count++] = devices->items[ordinal];
    }
    *devices = chosen;
}

void keep_chosen(struct device_list *devices)
{
    const char *list = getenv("CUDA_VISIBLE_DEVICES");
    if (list)
        choose(devices, list);
    keep_one_mig(devices);
}
