/* The parts of NVML's binary interface that this library implements: codes and structures. */
#ifndef SIM_NVML_API_H
#define SIM_NVML_API_H

#define NVML_API __attribute__((visibility("default"))) int

typedef unsigned long long u64;

/* A handle is opaque to programs. */
typedef struct handle *nvml_device;
typedef struct instance *nvml_instance;
typedef struct event_set *nvml_event_set;

enum {
    NVML_SUCCESS = 0,
    NVML_UNINITIALIZED = 1,
    NVML_INVALID_ARGUMENT = 2,
    NVML_NOT_SUPPORTED = 3,
    NVML_NO_PERMISSION = 4,
    NVML_NOT_FOUND = 6,
    NVML_INSUFFICIENT_SIZE = 7,
    NVML_DRIVER_NOT_LOADED = 9,
    NVML_TIMEOUT = 10,
    NVML_LIBRARY_NOT_FOUND = 12,
    NVML_GPU_IS_LOST = 15,
    NVML_OPERATING_SYSTEM = 17,
    NVML_MEMORY = 20,
    NVML_INSUFFICIENT_RESOURCES = 23,
    NVML_ARGUMENT_VERSION_MISMATCH = 25,
    NVML_UNKNOWN = 999,
};

enum { ARCH_VOLTA = 5, ARCH_TURING = 6, ARCH_AMPERE = 7, ARCH_ADA = 8, ARCH_HOPPER = 9 };

enum { UUID_SIZE = 96, NAME_SIZE = 96, VERSION_SIZE = 80, BUS_ID_SIZE = 32, OLD_BUS_ID_SIZE = 16 };

#define NO_INSTANCE 0xFFFFFFFFu

/* Versioned structures start with their size and version in one word. */
#define STRUCT_VERSION(type, number) ((unsigned)(sizeof(type) | ((unsigned)(number) << 24)))

struct memory_v1 {
    u64 total, free, used;
};

struct memory_v2 {
    unsigned version;
    u64 total, reserved, free, used;
};

struct bar1_memory {
    u64 total, free, used;
};

struct pci_info_v2 {
    char bus_id[OLD_BUS_ID_SIZE];
    unsigned domain, bus, device, device_id, subsystem_id, reserved[4];
};

struct pci_info_v3 {
    char bus_id_legacy[OLD_BUS_ID_SIZE];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[BUS_ID_SIZE];
};

struct pci_info_ext {
    unsigned version, domain, bus, device, device_id, subsystem_id, base_class, sub_class;
    char bus_id[BUS_ID_SIZE];
};

struct process_v1 {
    unsigned pid;
    u64 used;
};

struct process_v2 {
    unsigned pid;
    u64 used;
    unsigned gi, ci;
};

struct process_detail {
    unsigned pid;
    u64 used;
    unsigned gi, ci;
    u64 used_protected;
};

struct process_detail_list {
    unsigned version, mode, count;
    struct process_detail *array;
};

struct process_utilization {
    unsigned pid;
    u64 timestamp;
    unsigned sm, memory, encoder, decoder;
};

struct process_utilization_info {
    u64 timestamp;
    unsigned pid, sm, memory, encoder, decoder, jpeg, ofa;
};

struct processes_utilization_info {
    unsigned version, count;
    u64 last_seen;
    struct process_utilization_info *array;
};

struct utilization {
    unsigned gpu, memory;
};

struct attributes {
    unsigned sms, copy_engines, decoders, encoders, jpegs, ofas, gi_slices, ci_slices;
    u64 memory_mb;
};

struct placement {
    unsigned start, size;
};

struct gi_profile {
    unsigned id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
};

struct gi_profile_v2 {
    unsigned version, id, p2p, slices, instances, sms, copy_engines, decoders, encoders, jpegs,
        ofas;
    u64 memory_mb;
    char name[NAME_SIZE];
};

struct gi_profile_v3 {
    unsigned version, id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    u64 memory_mb;
    char name[NAME_SIZE];
    unsigned capabilities;
};

struct gi_info {
    nvml_device device;
    unsigned id, profile_id;
    struct placement placement;
};

struct ci_profile {
    unsigned id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
};

struct ci_profile_v2 {
    unsigned version, id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    char name[NAME_SIZE];
};

struct ci_profile_v3 {
    unsigned version, id, slices, instances, sms, copy_engines, decoders, encoders, jpegs, ofas;
    char name[NAME_SIZE];
    unsigned capabilities;
};

struct ci_info {
    nvml_device device;
    nvml_instance gpu_instance;
    unsigned id, profile_id;
    struct placement placement;
};

struct event_data {
    nvml_device device;
    u64 type, data;
    unsigned gi, ci;
};

struct event_wait_v3 {
    unsigned timeout_ms, data_type;
    char uuid[UUID_SIZE];
    char source_module[16];
    u64 type, data, group_cursor, instance_id, timestamp_us, trace_id;
    unsigned gi, ci, severity, category_id, module_event_code, scope, originator, module_instance;
    unsigned chiplet_id, log_level, attributes, group_cper_size, group_attributes;
    unsigned char group_size, group_index;
};

union value {
    double real;
    int signed_int;
    unsigned unsigned_int;
    u64 unsigned_long_long;
};

enum { VALUE_UNSIGNED_INT = 1, VALUE_UNSIGNED_LONG_LONG = 3 };

struct field_value {
    unsigned field, scope;
    long long timestamp_us, latency_us;
    int value_type, status;
    union value value;
};

struct sample {
    u64 timestamp_us;
    union value value;
};

struct ecc_counts {
    u64 l1, l2, memory, registers;
};

struct sram_ecc_status {
    unsigned version;
    u64 aggregate_parity, aggregate_secded, aggregate_corrected;
    u64 volatile_parity, volatile_secded, volatile_corrected;
    u64 l2, sm, pcie, mcu, other;
    unsigned threshold_exceeded;
};

struct remapped_rows_v2 {
    unsigned corrected, corrected_inactive, uncorrected, uncorrected_inactive, pending, failure;
};

struct remap_histogram {
    unsigned max, high, partial, low, none;
};

struct repair_status {
    unsigned version, channel_pending, tpc_pending;
};

enum { FABRIC_UUID_SIZE = 16 };

struct fabric_info {
    unsigned char cluster[FABRIC_UUID_SIZE];
    int status;
    unsigned clique;
    unsigned char state;
};

struct fabric_info_v2 {
    unsigned version;
    unsigned char cluster[FABRIC_UUID_SIZE];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
};

struct fabric_info_v3 {
    unsigned version;
    unsigned char cluster[FABRIC_UUID_SIZE];
    int status;
    unsigned clique;
    unsigned char state;
    unsigned health_mask;
    unsigned char health_summary;
};

struct versioned_word {
    unsigned version, value;
};

struct temperature {
    unsigned version;
    int sensor, celsius;
};

struct uuid_argument {
    unsigned version, type;
    union {
        char text[41];
        unsigned char bytes[16];
    } value;
};

struct driver_branch {
    unsigned version;
    char branch[VERSION_SIZE];
};

struct memory_limits {
    const char *cgroup;
    u64 soft, hard;
};

struct memory_limits_used {
    const char *cgroup;
    u64 soft, hard, used;
};

#endif
