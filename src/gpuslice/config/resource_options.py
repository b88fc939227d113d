"""Options for the resources that a node advertises: memory units, GPUs, MIG devices, replicas."""

from __future__ import annotations

from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.slicing.rules import GPUSHARE_RESOURCE

MEMORY_OPTIONS = (
    Option(
        "resource",
        "Resource name of memory units.",
        GPUSHARE_RESOURCE,
        ("GPUSLICE_RESOURCE",),
        key="sharing.memory.resource",
    ),
    Option(
        "memory-devices",
        "GPUs whose memory is divided into units: all, none, a number of GPUs, or indices and "
        "UUIDs separated by commas.",
        "all with gpuslice agent, none with nvidia-device-plugin",
        ("GPUSLICE_MEMORY_DEVICES",),
        key="sharing.memory.devices",
    ),
    Option(
        "memory-unit",
        "Size of one unit: GiB, MiB, or a size such as 256MiB.",
        "GiB",
        ("GPUSLICE_MEMORY_UNIT",),
        key="sharing.memory.unit",
    ),
    Option(
        "memory-reserve",
        "Memory of each GPU that is not divided into units: a size, or auto for what the driver "
        "and the MPS server need.",
        "auto with gpuslice agent, 0 otherwise",
        ("GPUSLICE_MEMORY_RESERVE",),
        key="sharing.memory.reserve",
    ),
    Option(
        "memory-advertise",
        "Free units to advertise: one-gpu (those of one GPU, which is the most that a pod can get) "
        "or all (for a scheduler that knows GPUs).",
        "one-gpu",
        ("GPUSLICE_MEMORY_ADVERTISE",),
        key="sharing.memory.advertise",
    ),
    Option(
        "memory-ids",
        "Form of the device ids: long (<UUID>-_-<number>), short (<minor number>-<number>) or auto "
        "(long, but short for a GPU with very many units).",
        "auto",
        ("GPUSLICE_MEMORY_IDS",),
        key="sharing.memory.ids",
    ),
    Option(
        "threads",
        "Limit on the threads of a container: proportional to its memory, uniform (100/n percent, "
        "n is the number of units of the GPU), uniform-half (twice that), sm_partition "
        "(proportional, as SMs that no other container uses), an amount such as 30% or 20 SMs, or "
        "none.",
        "proportional",
        ("GPUSLICE_THREADS",),
        key="sharing.memory.threads",
    ),
    Option(
        "mps-mode",
        "Who runs MPS, which limits containers: managed (gpuslice mps, with a daemon for each "
        "GPU), external (the daemon at mps-pipe) or none (memory is counted and not limited).",
        "external if mps-pipe is set, none otherwise",
        ("GPUSLICE_MPS_MODE",),
        key="sharing.memory.mps.mode",
    ),
    Option(
        "mps-pipe",
        "Pipe directory of an external MPS daemon of the node. It turns on limits for containers.",
        "",
        ("GPUSLICE_MPS_PIPE",),
        key="sharing.memory.mps.pipeDirectory",
    ),
    Option(
        "mps-check",
        "Mark slices unhealthy while an external MPS daemon does not respond: require (always), "
        "auto (only if the agent can see the pipe directory) or off.",
        "require",
        ("GPUSLICE_MPS_CHECK",),
        key="sharing.memory.mps.check",
    ),
    Option(
        "mps-shm",
        "Directory on the host that containers get as /dev/shm, as the external MPS daemon has it; "
        "host for /dev/shm of the host.",
        "",
        ("GPUSLICE_MPS_SHM",),
        key="sharing.memory.mps.shm",
    ),
    Option(
        "mps-namespaces",
        "Whether each container has a namespace of MPS, whose limits its programs cannot exceed: "
        "auto (driver 615 or newer, with mps-mode managed and bind cdi), require (otherwise no "
        "container starts) or off.",
        "auto",
        ("GPUSLICE_MPS_NAMESPACES",),
        key="sharing.memory.mps.namespaces",
    ),
)

DEVICE_OPTIONS = (
    Option(
        "mig-strategy",
        "How to advertise GPUs in MIG mode: none (as whole GPUs), single (MIG devices as GPUs) or "
        "mixed (MIG devices by profile).",
        "none",
        ("MIG_STRATEGY",),
        key="flags.migStrategy",
    ),
    Option(
        "device-discovery-strategy",
        "How to find GPUs: auto, nvml or tegra.",
        "auto",
        ("DEVICE_DISCOVERY_STRATEGY",),
        key="flags.deviceDiscoveryStrategy",
    ),
    Option(
        "shared-devices-allocation-policy",
        "Replicas that the kubelet should prefer: distributed, packed or spread.",
        "distributed",
        ("SHARED_DEVICES_ALLOCATION_POLICY",),
        key="flags.plugin.sharedDevicesAllocationPolicy",
    ),
    Option(
        "mps-root",
        "Directory of the MPS daemons on the host. Required for replicas with MPS, and for memory "
        "units with mps-mode managed.",
        "",
        ("MPS_ROOT",),
        key="flags.mpsRoot",
    ),
    Option(
        "fail-on-init-error",
        "Exit if there is no driver or no GPU. If false, wait for them.",
        "true",
        ("FAIL_ON_INIT_ERROR",),
        OptionKind.SWITCH,
        key="flags.failOnInitError",
    ),
    Option(
        "health-checks",
        "Check the health of GPUs.",
        "true",
        ("GPUSLICE_HEALTH_CHECKS",),
        OptionKind.SWITCH,
        key="health.enabled",
    ),
    Option(
        "disabled-xids",
        "XIDs to ignore, separated by commas; all or xids for every XID.",
        "",
        ("DP_DISABLE_HEALTHCHECKS",),
        OptionKind.VARIABLE,
    ),
    Option(
        "enabled-xids",
        "XIDs that are fatal even if they are ignored otherwise, separated by commas; all for "
        "every XID.",
        "",
        ("DP_ENABLE_HEALTHCHECKS",),
        OptionKind.VARIABLE,
    ),
)
