#include "report.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* A JSON writer that keeps only its position. Values follow keys. */
struct json {
    FILE *out;
    bool pretty;
    int depth;
    bool is_first;
};

static void next(struct json *json)
{
    if (!json->is_first)
        fputs(json->pretty ? "," : ", ", json->out);
    if (json->pretty && json->depth)
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    json->is_first = false;
}

static void text(struct json *json, const char *value)
{
    fputc('"', json->out);
    for (; *value; value++) {
        unsigned char c = (unsigned char)*value;
        if (c == '"' || c == '\\')
            fprintf(json->out, "\\%c", c);
        else if (c < 0x20)
            fprintf(json->out, "\\u%04x", c);
        else
            fputc(c, json->out);
    }
    fputc('"', json->out);
}

static void key(struct json *json, const char *name)
{
    next(json);
    text(json, name);
    fputs(": ", json->out);
}

static void begin(struct json *json, char bracket)
{
    fputc(bracket, json->out);
    json->depth++;
    json->is_first = true;
}

static void end(struct json *json, char bracket)
{
    json->depth--;
    if (json->pretty && !json->is_first)
        fprintf(json->out, "\n%*s", 2 * json->depth, "");
    fputc(bracket, json->out);
    json->is_first = false;
}

static void put_text(struct json *json, const char *name, const char *value)
{
    key(json, name);
    if (value && *value)
        text(json, value);
    else
        fputs("null", json->out);
}

/* A negative number means null. */
static void put_number(struct json *json, const char *name, int64_t value)
{
    key(json, name);
    if (value < 0)
        fputs("null", json->out);
    else
        fprintf(json->out, "%lld", (long long)value);
}

static void put_bool(struct json *json, const char *name, bool value)
{
    key(json, name);
    fputs(value ? "true" : "false", json->out);
}

static void put_percentage(struct json *json, bool known, double value)
{
    key(json, "thread_percentage");
    if (known)
        fprintf(json->out, "%.1f", value);
    else
        fputs("null", json->out);
}

static void put_device(struct json *json, const struct device *device, const struct use *use)
{
    bool known = use->has_context;
    next(json);
    begin(json, '{');
    put_number(json, "ordinal", use->ordinal);
    put_text(json, "uuid", device->uuid);
    put_text(json, "name", device->name);
    put_number(json, "total_bytes", (int64_t)device->total_bytes);
    put_number(json, "free_bytes", known ? (int64_t)use->free_bytes : -1);
    put_number(json, "limit_bytes", known ? use->first.limit_bytes : device->limit_bytes);
    put_number(json, "sms", known ? use->first.sms : -1);
    put_number(json, "sms_total", device->sms);
    put_percentage(json, known, use->first.percentage);
    put_number(json, "context_bytes", (int64_t)use->context_bytes);
    end(json, '}');
}

static void put_devices(struct json *json, const struct session *session, const struct run *run)
{
    key(json, "devices");
    begin(json, '[');
    for (int i = 0; i < run->use_count; i++)
        put_device(json, &session->devices.items[run->uses[i].ordinal], &run->uses[i]);
    end(json, ']');
}

static void put_contexts(struct json *json, const struct run *run)
{
    key(json, "contexts");
    begin(json, '[');
    for (int i = 0; i < run->context_count; i++) {
        next(json);
        begin(json, '{');
        put_number(json, "ordinal", run->contexts[i].ordinal);
        put_number(json, "sms", run->contexts[i].sms);
        put_percentage(json, true, run->contexts[i].percentage);
        end(json, '}');
    }
    end(json, ']');
}

static void put_memory(struct json *json, const struct run *run)
{
    const struct use *use = &run->uses[0];
    uint64_t contexts = run->use_count ? use->context_bytes : 0;
    put_number(json, "allocated_bytes", (int64_t)run->allocated_bytes);
    put_number(json, "context_bytes", (int64_t)contexts);
    put_number(json, "total_bytes", (int64_t)(run->allocated_bytes + contexts));
    put_number(json, "limit_bytes",
               run->use_count && use->has_context ? use->first.limit_bytes : -1);
}

static void put_warnings(struct json *json, const struct warnings *warnings)
{
    key(json, "warnings");
    begin(json, '[');
    for (int i = 0; i < warnings->count; i++) {
        next(json);
        text(json, warnings->items[i]);
    }
    end(json, ']');
}

void print_report(const struct options *options, const struct session *session,
                  const struct run *run)
{
    char *line = NULL;
    size_t length = 0;
    struct json json = {open_memstream(&line, &length), options->pretty, 0, true};
    if (!json.out)
        abort();
    bool mps = session->uses_mps;
    int priority = session->env.priority >= 0 ? session->env.priority
                                                 : session->mps.priority;
    begin(&json, '{');
    put_text(&json, "command", command_name(options->command));
    put_number(&json, "pid", getpid());
    put_number(&json, "host_pid", mps && session->mps.client_pid ? session->mps.client_pid : -1);
    put_bool(&json, "mps", mps);
    put_number(&json, "server_pid", mps && session->mps.server_pid ? session->mps.server_pid : -1);
    put_number(&json, "priority", mps ? priority : 0);
    put_devices(&json, session, run);
    put_contexts(&json, run);
    if (options->command != INFO)
        put_memory(&json, run);
    put_warnings(&json, &session->warnings);
    put_text(&json, "error", session->failure.name);
    put_text(&json, "message", session->failure.text);
    end(&json, '}');
    fclose(json.out);
    printf("%s\n", line);
    fflush(stdout);
    free(line);
}
