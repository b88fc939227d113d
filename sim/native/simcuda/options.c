#include "options.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const NAMES[] = {"info", "alloc", "fill", "hold", "fault"};

static const char HELP[] =
    "usage: simcuda COMMAND [OPTIONS]\n"
    "\n"
    "A CUDA process of the simulated driver. It reads the environment like libcuda, connects to the\n"
    "MPS daemon of CUDA_MPS_PIPE_DIRECTORY if one answers, and prints the result as one line of\n"
    "JSON.\n"
    "\n"
    "commands:\n"
    "  info                 print the devices and their limits\n"
    "  alloc SIZE           allocate memory once\n"
    "  fill [--step SIZE]   allocate until no byte is free, which is success\n"
    "  hold [--alloc SIZE]  print the line when ready, and keep the contexts until SIGTERM,\n"
    "                       SIGINT or an error of the GPU\n"
    "  fault                run a kernel that faults\n"
    "\n"
    "options:\n"
    "  --device LIST        ordinals such as 0 or 0,1, or all (default: info all, others 0)\n"
    "  --contexts N         contexts on each device (default 1)\n"
    "  --context-percentages A,B,...\n"
    "                       values of CUDA_MPS_ACTIVE_THREAD_PERCENTAGE for each context\n"
    "  --step SIZE          first step of fill, halved at every failure (default 256MiB)\n"
    "  --alloc SIZE         memory that hold allocates\n"
    "  --until-eof          hold also exits at the end of stdin\n"
    "  --linger             hold reports an error of the GPU and continues until a signal\n"
    "  --json, --pretty     one line (default), or indented\n"
    "  --help\n"
    "\n"
    "SIZE is a number of bytes, or a number with KiB, MiB or GiB.\n"
    "exit status: 0 success, 1 invalid arguments, 2 a CUDA call failed (see \"error\")\n"
    "environment: CUDA_MPS_PIPE_DIRECTORY, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE,\n"
    "  CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, CUDA_MPS_CLIENT_PRIORITY, CUDA_MPS_SM_PARTITION,\n"
    "  CUDA_MPS_ENABLE_PER_CTX_DEVICE_MULTIPROCESSOR_PARTITIONING, CUDA_VISIBLE_DEVICES,\n"
    "  NVIDIA_VISIBLE_DEVICES (with MPS, only whether it is empty), GPUSLICE_SIM_NODE\n";

enum {
    DEVICE = 1, CONTEXTS, PERCENTAGES, STEP, ALLOCATE, UNTIL_EOF, LINGER, JSON, PRETTY, HELP_OPTION
};

static const struct option LONG[] = {
    {"device", required_argument, NULL, DEVICE},
    {"contexts", required_argument, NULL, CONTEXTS},
    {"context-percentages", required_argument, NULL, PERCENTAGES},
    {"step", required_argument, NULL, STEP},
    {"alloc", required_argument, NULL, ALLOCATE},
    {"until-eof", no_argument, NULL, UNTIL_EOF},
    {"linger", no_argument, NULL, LINGER},
    {"json", no_argument, NULL, JSON},
    {"pretty", no_argument, NULL, PRETTY},
    {"help", no_argument, NULL, HELP_OPTION},
    {NULL, 0, NULL, 0},
};

const char *command_name(enum command command)
{
    return NAMES[command];
}

static int usage_error(const char *what, const char *value)
{
    fprintf(stderr, "simcuda: %s %s (see simcuda --help)\n", what, value);
    return -1;
}

static int read_size(const char *text, uint64_t *bytes)
{
    char *end;
    errno = 0;
    unsigned long long number = strtoull(text, &end, 10);
    int shift = strcmp(end, "KiB") == 0 ? 10 : strcmp(end, "MiB") == 0 ? 20 :
                strcmp(end, "GiB") == 0 ? 30 : strcmp(end, "") == 0 ? 0 : -1;
    if (end == text || *text == '-' || errno || shift < 0 || number == 0 ||
        number > (UINT64_MAX >> 1) >> shift)
        return usage_error("not a size:", text);
    *bytes = (uint64_t)number << shift;
    return 0;
}

static int read_count(const char *text, int least, int most, int *count)
{
    char *end;
    long number = strtol(text, &end, 10);
    if (end == text || *end || number < least || number > most)
        return usage_error("not a number in range:", text);
    *count = (int)number;
    return 0;
}

static int read_devices(struct options *options, char *text)
{
    if (strcmp(text, "all") == 0) {
        options->all_devices = true;
        return 0;
    }
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (options->device_count == MAX_DEVICES ||
            read_count(word, 0, 1 << 20, &options->devices[options->device_count++]) < 0)
            return -1;
    }
    return options->device_count ? 0 : usage_error("no device in", "--device");
}

static int read_percentages(struct options *options, char *text)
{
    char *rest = NULL;
    for (char *word = strtok_r(text, ",", &rest); word; word = strtok_r(NULL, ",", &rest)) {
        if (options->percentage_count == MAX_CONTEXTS)
            return usage_error("too many values in", "--context-percentages");
        options->percentages[options->percentage_count++] = word;
    }
    return 0;
}

static int read_option(struct options *options, int option)
{
    switch (option) {
    case DEVICE:
        return read_devices(options, optarg);
    case CONTEXTS:
        return read_count(optarg, 1, MAX_CONTEXTS, &options->contexts);
    case PERCENTAGES:
        return read_percentages(options, optarg);
    case STEP:
        return read_size(optarg, &options->step);
    case ALLOCATE:
        return read_size(optarg, &options->bytes);
    case UNTIL_EOF:
        options->until_eof = true;
        return 0;
    case LINGER:
        options->linger = true;
        return 0;
    case JSON:
        options->pretty = false;
        return 0;
    case PRETTY:
        options->pretty = true;
        return 0;
    case HELP_OPTION:
        fputs(HELP, stdout);
        return 1;
    default:
        return usage_error("invalid option", "");
    }
}

static int read_command(struct options *options, int argc, char **argv)
{
    if (optind >= argc)
        return usage_error("no command: use", "info, alloc, fill, hold or fault");
    int command = 0;
    while (command <= FAULT && strcmp(argv[optind], NAMES[command]) != 0)
        command++;
    if (command > FAULT)
        return usage_error("unknown command", argv[optind]);
    options->command = (enum command)command;
    int wanted = command == ALLOC ? 2 : 1;
    if (argc - optind != wanted)
        return usage_error(command == ALLOC ? "write one SIZE after" : "remove the arguments after",
                        argv[optind]);
    return command == ALLOC ? read_size(argv[optind + 1], &options->bytes) : 0;
}

int read_options(struct options *options, int argc, char **argv)
{
    memset(options, 0, sizeof *options);
    options->contexts = 1;
    options->step = 256u << 20;
    int option;
    while ((option = getopt_long(argc, argv, "", LONG, NULL)) != -1) {
        int result = read_option(options, option);
        if (result != 0)
            return result;
    }
    return read_command(options, argc, argv);
}
