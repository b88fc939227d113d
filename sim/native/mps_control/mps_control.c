/*
 * nvidia-cuda-mps-control. This program sends commands to the daemon itself, because containers
 * with the programs of the driver have nothing else of the node. The daemon runs on the node.
 */
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "locate.h"

#define DEFAULT_PIPE_DIRECTORY "/tmp/nvidia-mps"

/* As in gpuslice_sim/mps/daemon.py. */
enum { OTHER_PROTOCOL = 255 };

static int start_daemon(char **arguments)
{
    char own[PATH_MAX], node[PATH_MAX], program[PATH_MAX + 64];
    ssize_t length = readlink("/proc/self/exe", own, sizeof own - 1);
    own[length > 0 ? length : 0] = '\0';
    if (sim_locate_node(own, node, sizeof node) != 0) {
        fprintf(stderr, "no simulated node at or above %s: start MPS on the node\n", own);
        return 1;
    }
    snprintf(program, sizeof program, "%s/libexec/mps", node);
    execv(program, arguments);
    fprintf(stderr, "%s: %s\n", program, strerror(errno));
    return 1;
}

static int connect_to(const char *directory, const char *name)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", directory, name);
    if (length >= (int)sizeof address.sun_path)
        return -1;
    int connection = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (connection >= 0 && connect(connection, (struct sockaddr *)&address, sizeof address) < 0) {
        if (errno == EINTR)
            continue;
        close(connection);
        return -1;
    }
    return connection;
}

/* Only root and the owner of the daemon may use the first socket. */
static FILE *connect_to_daemon(void)
{
    const char *directory = getenv("CUDA_MPS_PIPE_DIRECTORY");
    if (!directory || !*directory)
        directory = DEFAULT_PIPE_DIRECTORY;
    int connection = connect_to(directory, "control_privileged");
    if (connection < 0)
        connection = connect_to(directory, "control");
    return connection < 0 ? NULL : fdopen(connection, "r");
}

/* The format of a line is that of gpuslice_sim/mps/wire.py. */
static bool send_command(int connection, const char *verb, const char *text)
{
    size_t size = strlen(verb) + sizeof " text=" + 3 * strlen(text) + 1;
    char *line = malloc(size), *end = line + sprintf(line, "%s text=", verb);
    for (; *text; text++)
        end += strchr(" %\n", *text) ? sprintf(end, "%%%02X", *text) : sprintf(end, "%c", *text);
    *end++ = '\n';
    bool whole = true;
    for (char *from = line; whole && from < end;) {
        ssize_t sent = send(connection, from, (size_t)(end - from), MSG_NOSIGNAL);
        if (sent >= 0)
            from += sent;
        else
            whole = errno == EINTR;
    }
    free(line);
    return whole;
}

static const char *field(const char *line, const char *key)
{
    size_t length = strlen(key);
    for (const char *word = strchr(line, ' '); word; word = strchr(word, ' '))
        if (strncmp(++word, key, length) == 0 && word[length] == '=')
            return word + length + 1;
    return "";
}

static void print_text(const char *text)
{
    if (*text == '\0' || *text == ' ')
        return;
    for (; *text && *text != ' '; text++) {
        char digits[3] = {0};
        if (*text == '%' && text[1] && text[2]) {
            memcpy(digits, text + 1, 2);
            putchar((int)strtol(digits, NULL, 16));
            text += 2;
        } else
            putchar(*text);
    }
    putchar('\n');
    fflush(stdout);
}

/*
 * Prints the answer, whatever it is. Returns whether there was one: a daemon that is quitting, or
 * that serves another program, closes the connection without an answer.
 */
static bool run_command(FILE *daemon, const char *verb, const char *command, int *status)
{
    char *answer = NULL;
    size_t size = 0;
    ssize_t length = -1;
    if (send_command(fileno(daemon), verb, command))
        length = getline(&answer, &size, daemon);
    if (length > 0) {
        answer[strcspn(answer, "\n")] = '\0';
        print_text(field(answer, "text"));
        *status = atoi(field(answer, "status"));
    }
    free(answer);
    return length > 0;
}

static void run_each_line(FILE *daemon)
{
    char *line = NULL;
    size_t size = 0;
    bool answered = true;
    int status; /* Real programs of protocol 2 exit with 0 also if a command is rejected. */
    while (answered && getline(&line, &size, stdin) >= 0) {
        line[strcspn(line, "\n")] = '\0';
        answered = run_command(daemon, "command", line, &status);
    }
    free(line);
}

static bool is_module(const char *word)
{
    static const char *const words[] = {"server", "namespace", "client", "device", "sm-partition",
                                        "feature", "memacct", "context-share", "-q", "--quit"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strcmp(word, words[i]) == 0)
            return true;
    return false;
}

/*
 * A command of protocol 3. Returns its status, 0 if the daemon closes the connection without an
 * answer, and -1 if no daemon with this protocol runs.
 */
static int run_module(char **arguments)
{
    char text[4096] = "";
    size_t length = 0;
    for (; *arguments && length < sizeof text; arguments++)
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s",
                                   length ? " " : "", *arguments);
    FILE *daemon = connect_to_daemon();
    int status = 0;
    if (!daemon)
        return -1;
    run_command(daemon, "module", text, &status);
    return status == OTHER_PROTOCOL ? -1 : status;
}

int main(int count, char **arguments)
{
    if (count > 1) {
        int status = is_module(arguments[1]) ? run_module(arguments + 1) : -1;
        return status >= 0 ? status : start_daemon(arguments);
    }
    FILE *daemon = connect_to_daemon();
    if (!daemon) {
        fputs("Cannot find MPS control daemon process\n", stderr);
        return 1;
    }
    run_each_line(daemon);
    return 0; /* Also if there was no answer: the real program sometimes exits with 1 then. */
}
