/* A CUDA process of the simulated driver. options.c describes the commands. */
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "options.h"
#include "report.h"
#include "session.h"

enum { OK = 0, USAGE = 1, CUDA_FAILED = 2 };
enum { HEARTBEAT_MS = 1000 };

static void set_percentage(const struct options *options, int number)
{
    if (number < options->percentage_count)
        setenv("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", options->percentages[number], 1);
}

/* Opens all contexts of one device, and reads its free memory. */
static int open_device(const struct options *options, struct session *session, struct run *run,
                       int ordinal)
{
    struct use *use = NULL;
    if (ordinal < session->devices.count) {
        use = &run->uses[run->use_count++];
        use->ordinal = ordinal;
    }
    for (int i = 0; i < options->contexts; i++) {
        if (run->context_count == MAX_CONTEXTS)
            return fail(&session->failure, "CUDA_ERROR_OUT_OF_MEMORY", "too many contexts");
        struct context *context = &run->contexts[run->context_count];
        set_percentage(options, i);
        if (session_context(session, ordinal, context) < 0)
            return -1;
        run->context_count++;
        use->context_bytes += session->context_bytes;
        if (!use->has_context)
            use->first = *context;
        use->has_context = true;
    }
    return use ? session_free_bytes(session, ordinal, &use->free_bytes) : -1;
}

static int open_devices(const struct options *options, struct session *session, struct run *run)
{
    bool all = options->all_devices || (options->command == INFO && !options->device_count);
    int count = all ? session->devices.count : options->device_count ? options->device_count : 1;
    int result = 0;
    for (int i = 0; i < count; i++) {
        int ordinal = all ? i : options->device_count ? options->devices[i] : 0;
        if (open_device(options, session, run, ordinal) == 0)
            continue;
        result = -1;
        if (options->command != INFO)
            break;
    }
    return result;
}

static int allocate(struct session *session, struct run *run, uint64_t bytes)
{
    if (!run->context_count)
        return fail(&session->failure, "CUDA_ERROR_INVALID_CONTEXT", "there is no context");
    if (session_alloc(session, &run->contexts[0], bytes) < 0)
        return -1;
    run->allocated_bytes += bytes;
    return 0;
}

/*
 * Halves the step at every failure, which ends exactly at the limit. Half of a failed step fits at
 * most once, unless another process releases memory: then the step is doubled again.
 */
static int fill(const struct options *options, struct session *session, struct run *run)
{
    uint64_t step = options->step;
    bool took_this_step = false;
    while (step) {
        if (allocate(session, run, step) == 0) {
            if (took_this_step && step < options->step)
                step *= 2;
            took_this_step = true;
            continue;
        }
        if (strcmp(session->failure.name, "CUDA_ERROR_OUT_OF_MEMORY") != 0)
            return -1;
        step /= 2;
        took_this_step = false;
    }
    return 0;
}

static void refresh_free(struct session *session, struct run *run)
{
    struct failure before = session->failure;
    for (int i = 0; i < run->use_count; i++)
        if (run->uses[i].has_context)
            session_free_bytes(session, run->uses[i].ordinal, &run->uses[i].free_bytes);
    session->failure = before;
}

static int signal_descriptor(void)
{
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigprocmask(SIG_BLOCK, &signals, NULL);
    return signalfd(-1, &signals, SFD_CLOEXEC);
}

static bool at_end(int input)
{
    char ignored[256];
    return read(input, ignored, sizeof ignored) <= 0;
}

static int check(struct session *session, const struct run *run)
{
    for (int i = 0; i < run->context_count; i++)
        if (session_sync(session, &run->contexts[i]) < 0)
            return -1;
    return 0;
}

/*
 * Waits like an idle CUDA program, which gets an error at its next call: here after at most one
 * heartbeat. Returns 0 if the program must exit.
 */
static int wait_for_end(const struct options *options, struct session *session,
                        const struct run *run, int signals, bool *failed)
{
    bool listens = session->uses_mps && !*failed;
    struct pollfd events[] = {
        {.fd = signals, .events = POLLIN},
        {.fd = options->until_eof ? STDIN_FILENO : -1, .events = POLLIN},
        {.fd = listens ? session->mps.socket : -1, .events = POLLIN},
    };
    int ready = poll(events, 3, *failed ? -1 : HEARTBEAT_MS);
    if (events[0].revents || (events[1].revents && at_end(STDIN_FILENO)))
        return 0;
    if (ready == 0)
        *failed = check(session, run) < 0;
    else if (events[2].revents)
        *failed = mps_take_error(&session->mps, &session->failure) < 0;
    return 1;
}

static int hold(const struct options *options, struct session *session, struct run *run,
                int signals)
{
    bool failed = false;
    while (wait_for_end(options, session, run, signals, &failed)) {
        if (!failed || !*session->failure.name)
            continue;
        print_report(options, session, run);
        if (!options->linger)
            return CUDA_FAILED;
        session->failure.name[0] = session->failure.text[0] = '\0';
    }
    return OK;
}

static int act(const struct options *options, struct session *session, struct run *run)
{
    switch (options->command) {
    case ALLOC:
        return allocate(session, run, options->bytes);
    case FILL:
        return fill(options, session, run);
    case HOLD:
        return options->bytes ? allocate(session, run, options->bytes) : 0;
    case FAULT:
        return session_fault(session, &run->contexts[0]);
    default:
        return 0;
    }
}

int main(int argc, char **argv)
{
    static struct options options;
    static struct session session;
    static struct run run;
    int parsed = read_options(&options, argc, argv);
    if (parsed != 0)
        return parsed < 0 ? USAGE : OK;

    int result = session_open(&session);
    if (result == 0)
        result = open_devices(&options, &session, &run);
    if (result == 0)
        result = act(&options, &session, &run);
    refresh_free(&session, &run);
    /* From here on, a signal causes a clean exit. Before, it can interrupt a wait for a server. */
    int signals = options.command == HOLD ? signal_descriptor() : -1;
    print_report(&options, &session, &run);
    int status = result < 0 ? CUDA_FAILED : OK;
    if (options.command == HOLD && result == 0)
        status = hold(&options, &session, &run, signals);
    session_close(&session);
    return status;
}
