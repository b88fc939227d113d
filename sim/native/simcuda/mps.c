#include "mps.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"

/* The server exited, or the daemon did not pass the connection to one. */
static int lost(struct failure *failure)
{
    return fail(failure, "CUDA_ERROR_MPS_RPC_FAILURE", "the MPS server closed the connection");
}

static int read_line(struct mps *mps, char *line, size_t size)
{
    for (;;) {
        char *from = mps->buffer + mps->start;
        char *newline = memchr(from, '\n', mps->end - mps->start);
        if (newline) {
            size_t length = (size_t)(newline - from);
            if (length >= size)
                return -1;
            memcpy(line, from, length);
            line[length] = '\0';
            mps->start += length + 1;
            return 0;
        }
        memmove(mps->buffer, from, mps->end - mps->start);
        mps->end -= mps->start;
        mps->start = 0;
        if (mps->end == sizeof mps->buffer)
            return -1;
        ssize_t got = recv(mps->socket, mps->buffer + mps->end, sizeof mps->buffer - mps->end, 0);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return -1;
        mps->end += (size_t)got;
    }
}

static void unescape(const char *from, size_t length, char *to, size_t size)
{
    size_t out = 0;
    for (size_t i = 0; i < length && out + 1 < size; i++) {
        if (from[i] == '%' && i + 2 < length) {
            char digits[3] = {from[i + 1], from[i + 2], '\0'};
            to[out++] = (char)strtol(digits, NULL, 16);
            i += 2;
        } else
            to[out++] = from[i];
    }
    to[out] = '\0';
}

/* A space would end a word. */
static void escape(const char *from, char *to, size_t size)
{
    size_t out = 0;
    for (; *from && out + 4 < size; from++) {
        if (*from == ' ' || *from == '%' || *from == '\n')
            out += (size_t)snprintf(to + out, size - out, "%%%02X", (unsigned char)*from);
        else
            to[out++] = *from;
    }
    to[out] = '\0';
}

bool mps_field(const char *line, const char *key, char *value, size_t size)
{
    size_t length = strlen(key);
    for (const char *word = strchr(line, ' '); word; word = strchr(word, ' ')) {
        word++;
        if (strncmp(word, key, length) != 0 || word[length] != '=')
            continue;
        const char *from = word + length + 1;
        size_t end = strcspn(from, " ");
        if (end == 1 && *from == '-')
            return false;
        unescape(from, end, value, size);
        return true;
    }
    return false;
}

int64_t mps_number(const char *line, const char *key, int64_t fallback)
{
    char text[32];
    return mps_field(line, key, text, sizeof text) ? strtoll(text, NULL, 10) : fallback;
}

static bool has_verb(const char *line, const char *verb)
{
    size_t length = strlen(verb);
    return strncmp(line, verb, length) == 0 && (line[length] == ' ' || line[length] == '\0');
}

static int take_error(const char *line, struct failure *failure)
{
    char name[64] = "CUDA_ERROR_UNKNOWN", text[256] = "";
    mps_field(line, "name", name, sizeof name);
    mps_field(line, "text", text, sizeof text);
    return fail(failure, name, "%s", text);
}

static int send_line(struct mps *mps, const char *line)
{
    size_t length = strlen(line), sent = 0;
    while (sent < length) {
        ssize_t done = send(mps->socket, line + sent, length - sent, MSG_NOSIGNAL);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return -1;
        sent += (size_t)done;
    }
    return 0;
}

static int dial(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/control",
                          directory && *directory ? directory : DEFAULT_PIPE_DIRECTORY);
    if (length >= (int)sizeof address.sun_path)
        return -1;
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connection < 0)
        return -1;
    while (connect(connection, (struct sockaddr *)&address, sizeof address) < 0) {
        if (errno == EINTR)
            continue;
        close(connection);
        return -1;
    }
    return connection;
}

static int greet(struct mps *mps)
{
    char command[512] = "simcuda", path[256] = "", partition[512] = "-", line[1200];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length > 0) {
        path[length] = '\0';
        escape(path, command, sizeof command);
    }
    const char *wanted = getenv("CUDA_MPS_SM_PARTITION");
    if (wanted && *wanted)
        escape(wanted, partition, sizeof partition);
    snprintf(line, sizeof line, "client command=%s partition=%s\n", command, partition);
    return send_line(mps, line);
}

static void take_server(struct mps *mps, const char *line)
{
    char text[32] = "100";
    mps->server_pid = (int)mps_number(line, "pid", 0);
    mps->client_pid = (int)mps_number(line, "client", 0);
    mps->branch = (int)mps_number(line, "branch", 0);
    mps->priority = (int)mps_number(line, "priority", 0);
    mps->partitioned = mps_number(line, "partitioned", 0) == 1;
    mps->context_bytes = (uint64_t)mps_number(line, "context_bytes", 0);
    mps_field(line, "percentage", text, sizeof text);
    mps->percentage = strtod(text, NULL);
}

static void take_device(struct device_list *devices, const char *line)
{
    if (devices->count == MAX_DEVICES)
        return;
    struct device *device = &devices->items[devices->count++];
    memset(device, 0, sizeof *device);
    device->index = (int)mps_number(line, "index", 0);
    device->minor = (int)mps_number(line, "minor", 0);
    device->mig = (int)mps_number(line, "mig", -1);
    device->gi = -1;
    device->total_bytes = (uint64_t)mps_number(line, "total", 0);
    device->sms = (int)mps_number(line, "sms", 0);
    device->limit_bytes = mps_number(line, "limit", NO_LIMIT);
    mps_field(line, "uuid", device->uuid, sizeof device->uuid);
    mps_field(line, "name", device->name, sizeof device->name);
}

static int take_welcome(struct mps *mps, struct device_list *devices, struct failure *failure)
{
    char line[2048];
    while (read_line(mps, line, sizeof line) == 0) {
        if (has_verb(line, "server"))
            take_server(mps, line);
        else if (has_verb(line, "device"))
            take_device(devices, line);
        else if (has_verb(line, "error"))
            return take_error(line, failure);
        else if (has_verb(line, "ready"))
            return 1;
    }
    return fail(failure, "CUDA_ERROR_MPS_CONNECTION_FAILED",
                "the MPS control daemon or server closed the connection");
}

int mps_connect(struct mps *mps, struct device_list *devices, struct failure *failure)
{
    memset(mps, 0, sizeof *mps);
    devices->count = 0;
    mps->socket = dial();
    if (mps->socket < 0)
        return 0;
    if (greet(mps) < 0)
        return fail(failure, "CUDA_ERROR_MPS_CONNECTION_FAILED", "%s", strerror(errno));
    return take_welcome(mps, devices, failure);
}

void mps_close(struct mps *mps)
{
    if (mps->socket < 0)
        return;
    /* Waits until the server has released the contexts: they must not outlive the program. */
    struct timeval patience = {.tv_sec = 5};
    char line[1024];
    setsockopt(mps->socket, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    if (send_line(mps, "bye\n") == 0)
        while (read_line(mps, line, sizeof line) == 0)
            ;
    close(mps->socket);
    mps->socket = -1;
}

int mps_call(struct mps *mps, char *reply, size_t size, struct failure *failure,
             const char *format, ...)
{
    char line[8192];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (length >= (int)sizeof line - 1)
        return fail(failure, "CUDA_ERROR_INVALID_VALUE", "the call is too long");
    strcat(line, "\n");
    if (send_line(mps, line) < 0 || read_line(mps, reply, size) < 0)
        return lost(failure);
    return has_verb(reply, "ok") ? 0 : take_error(reply, failure);
}

int mps_take_error(struct mps *mps, struct failure *failure)
{
    char line[1024];
    return read_line(mps, line, sizeof line) < 0 ? lost(failure) : take_error(line, failure);
}
