"""Options for what containers get: devices, driver files, CDI, lists of GPUs for nested nodes."""

from __future__ import annotations

from gpuslice.config.option_definition import Option, OptionKind
from gpuslice.config.settings import CDI_DIRECTORY, NESTED_DIRECTORY, NESTED_ENV, NESTED_MOUNT

CONTAINER_OPTIONS = (
    Option(
        "device-list-strategy",
        "How to pass the list of devices to containers: any of envvar, volume-mounts, "
        "cdi-annotations, cdi-cri.",
        "envvar",
        ("DEVICE_LIST_STRATEGY",),
        OptionKind.LIST,
        key="flags.plugin.deviceListStrategy",
    ),
    Option(
        "device-id-strategy",
        "How to identify devices to the container runtime: uuid or index.",
        "uuid",
        ("DEVICE_ID_STRATEGY",),
        key="flags.plugin.deviceIDStrategy",
    ),
    Option(
        "pass-device-specs",
        "Pass the device nodes to the kubelet. The static CPU manager policy requires it.",
        "false",
        ("PASS_DEVICE_SPECS",),
        OptionKind.SWITCH,
        key="flags.plugin.passDeviceSpecs",
    ),
    Option(
        "bind",
        "How shares of a GPU get their limits: cdi (a CDI specification for each container, which "
        "the variables of a pod cannot override), env (in the answer of Allocate) or auto (both, "
        "for a container runtime that may ignore CDI).",
        "auto with gpuslice agent, env with nvidia-device-plugin",
        ("GPUSLICE_BIND",),
        key="flags.bind",
    ),
    Option(
        "thread-annotations",
        "What the annotation gpuslice.io/threads of a pod can change: off (nothing), lower (less "
        "than its containers were granted) or any (any share of the threads).",
        "off",
        ("GPUSLICE_THREAD_ANNOTATIONS",),
        key="flags.threadAnnotations",
    ),
    Option(
        "mps-hide-privileged-socket",
        "Keep root in containers from the privileged socket of MPS, which can change limits and "
        "end the daemon.",
        "true",
        ("GPUSLICE_MPS_HIDE_PRIVILEGED_SOCKET",),
        OptionKind.SWITCH,
        key="mps.hidePrivilegedSocket",
    ),
    Option(
        "mps-pipe-read-only",
        "Mount the pipe directory of MPS read-only into containers.",
        "false",
        ("GPUSLICE_MPS_PIPE_READ_ONLY",),
        OptionKind.SWITCH,
        key="mps.pipeReadOnly",
    ),
    Option(
        "driver-root",
        "Root of the driver on the host.",
        "/",
        ("NVIDIA_DRIVER_ROOT",),
        key="flags.nvidiaDriverRoot",
        aliases=("nvidia-driver-root",),
    ),
    Option(
        "dev-root",
        "Root of the driver's device nodes on the host.",
        "the driver root",
        ("NVIDIA_DEV_ROOT",),
        key="flags.nvidiaDevRoot",
        aliases=("nvidia-dev-root",),
    ),
    Option(
        "driver-root-ctr-path",
        "Path of the driver root in the container of the agent.",
        "/driver-root",
        ("DRIVER_ROOT_CTR_PATH", "CONTAINER_DRIVER_ROOT"),
        key="flags.plugin.containerDriverRoot",
        aliases=("container-driver-root",),
    ),
    Option(
        "gdrcopy-enabled",
        "Enable GDRCopy in containers.",
        "false",
        ("GDRCOPY_ENABLED",),
        OptionKind.SWITCH,
        key="flags.gdrcopyEnabled",
    ),
    Option(
        "gds-enabled",
        "Enable GPUDirect Storage in containers.",
        "false",
        ("GDS_ENABLED",),
        OptionKind.SWITCH,
        key="flags.gdsEnabled",
    ),
    Option(
        "mofed-enabled",
        "Enable the InfiniBand devices (MOFED) in containers.",
        "false",
        ("MOFED_ENABLED",),
        OptionKind.SWITCH,
        key="flags.mofedEnabled",
    ),
    Option(
        "imex-channel-ids",
        "IMEX channels for containers: 0, or empty.",
        "",
        ("IMEX_CHANNEL_IDS",),
        OptionKind.LIST,
        key="imex.channelIDs",
    ),
    Option(
        "imex-required",
        "Fail if an IMEX channel does not exist.",
        "false",
        ("IMEX_REQUIRED",),
        OptionKind.SWITCH,
        key="imex.required",
    ),
)

CDI_OPTIONS = (
    Option(
        "cdi-annotation-prefix",
        "Prefix of the annotation with the CDI devices.",
        "cdi.k8s.io/",
        ("CDI_ANNOTATION_PREFIX",),
        key="flags.plugin.cdiAnnotationPrefix",
    ),
    Option(
        "nvidia-cdi-hook-path",
        "Path of the hook program on the host, for CDI specifications.",
        "/usr/bin/nvidia-ctk",
        ("NVIDIA_CDI_HOOK_PATH", "NVIDIA_CTK_PATH"),
        key="flags.plugin.nvidiaCTKPath",
        aliases=("nvidia-ctk-path",),
    ),
    Option(
        "cdi-feature-flags",
        "Features of CDI specifications, with NVIDIA's names.",
        "",
        ("CDI_FEATURE_FLAGS",),
        OptionKind.LIST,
    ),
    Option(
        "cdi-disable-hooks",
        "Hooks to omit from CDI specifications; all for every hook.",
        "",
        ("CDI_DISABLE_HOOKS",),
        OptionKind.LIST,
    ),
    Option(
        "cdi-directory",
        "Directory for CDI specifications.",
        CDI_DIRECTORY,
        ("GPUSLICE_CDI_DIRECTORY",),
    ),
    Option(
        "cdi-remove-on-exit",
        "Remove the CDI specifications when the agent stops.",
        "false",
        ("GPUSLICE_CDI_REMOVE_ON_EXIT",),
        OptionKind.SWITCH,
    ),
)

NESTED_OPTIONS = (
    Option(
        "nested",
        "Nested clusters: host (containers of this node are nodes of an inner cluster), guest "
        "(this node is such a container) or off.",
        "off",
        ("NESTED",),
        key="flags.nested",
    ),
    Option(
        "nested-env",
        "With guest: file with the list of GPUs of this node. By default also "
        f"{NESTED_MOUNT}, which takes precedence.",
        NESTED_ENV,
        ("NESTED_ENV",),
        key="flags.nestedEnv",
    ),
    Option(
        "nested-file",
        "With host: where nested nodes have the list of their GPUs: mount (a file at "
        f"{NESTED_MOUNT}), none (a variable only; the container writes the file itself) or the "
        "path of a file.",
        "mount",
        ("NESTED_FILE",),
        key="flags.nestedFile",
    ),
    Option(
        "nested-dir",
        "With host: directory for the lists of GPUs of nested nodes.",
        NESTED_DIRECTORY,
        ("NESTED_DIR",),
        key="flags.nestedDir",
    ),
    Option(
        "nested-devices",
        "With guest: list of GPUs of this node, used if there is no file.",
        "",
        ("NVIDIA_ALLOCATED_DEVICES",),
        OptionKind.VARIABLE,
    ),
)
