"""Reason codes: stable short names of refusals, faults, warnings and log events.

A code keeps its meaning from release to release, so alerts, scripts and tests can rely on it. The
sentence that goes with it may change.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Self


class Code(StrEnum):
    meaning: str

    def __new__(cls, name: str, meaning: str) -> Self:
        code = str.__new__(cls, name)
        code._value_ = name
        code.meaning = meaning
        return code

    # Requests of the kubelet
    EMPTY_REQUEST = "EmptyRequest", "A request names no devices."
    DUPLICATE_DEVICE = "DuplicateDevice", "A request names a device more than once."
    UNKNOWN_DEVICE = "UnknownDevice", "A request names a device that this node does not advertise."
    REQUEST_TOO_LARGE = "RequestTooLarge", "A container requests several shares and can get one."
    REQUEST_TOO_LONG = (
        "RequestTooLong",
        "A request has more bytes than one that names every device of the resource.",
    )
    SPANS_GPUS = "SpansGPUs", "A request spans several GPUs and must lie on one."
    NESTED_FILE_NOT_WRITTEN = (
        "NestedFileNotWritten",
        "The list of GPUs for a nested node cannot be written.",
    )
    NESTED_FILE_REMOVED = "NestedFileRemoved", "A list of GPUs that no container uses was removed."
    POD_UNKNOWN = (
        "PodUnknown",
        "The kubelet does not tell which pod a container that starts belongs to.",
    )
    MIXED_SHARES = (
        "MixedShares",
        "A container requests shares with limits of several resources.",
    )
    ANNOTATION_INVALID = "AnnotationInvalid", "An annotation of a pod is not valid."
    ANNOTATIONS_UNKNOWN = "AnnotationsUnknown", "The annotations of a pod cannot be read."
    LIMITS_BOUND = (
        "LimitsBound",
        "The limits of a container were written as a CDI specification.",
    )
    BOUND_BY_CDI = (
        "BoundByCDI",
        "Containers get their limits by CDI, and pods cannot override them.",
    )
    BOUND_BY_ENVIRONMENT = (
        "BoundByEnvironment",
        "Containers get their limits by Allocate's environment, and pods can override them.",
    )
    BOUND_SPEC_REMOVED = (
        "BoundSpecRemoved",
        "CDI specifications of containers that are gone were removed.",
    )
    ALLOCATED = "Allocated", "A container got devices."
    PREFERENCE_FAILED = (
        "PreferenceFailed",
        "GetPreferredAllocation failed; the kubelet chooses devices itself.",
    )
    USAGE_UNKNOWN = "UsageUnknown", "The kubelet does not tell which devices are in use."
    USAGE_KNOWN = "UsageKnown", "The kubelet tells again which devices are in use."

    # Registration with the kubelet
    REGISTERED = "Registered", "The kubelet accepted the registration of a resource."
    REGISTRATION_FAILED = "RegistrationFailed", "The kubelet rejected a registration."
    WAITING_FOR_KUBELET = "WaitingForKubelet", "The kubelet's directory or socket is missing."
    PLUGIN_SERVER_RESTARTING = (
        "PluginServerRestarting",
        "A device plugin server restarts, for example because the kubelet restarted.",
    )
    SOCKET_NOT_CREATED = "SocketNotCreated", "The socket of a resource cannot be created."
    STALE_SOCKET_REMOVED = "StaleSocketRemoved", "A socket of a killed agent was removed."
    ALREADY_SERVED = "AlreadyServed", "Another process serves the same resource."
    DIRECTORY_LOCKED = "DirectoryLocked", "Another process locks a directory for too long."
    DEVICE_LIST_SENT = "DeviceListSent", "A device list was sent to the kubelet."
    ADVERTISED = "Advertised", "A GPU or MIG device is advertised under a resource name."
    RESOURCE_WITHDRAWN = "ResourceWithdrawn", "A resource is no longer advertised."
    MEMORY_UNIT_CHANGED = "MemoryUnitChanged", "The memory unit changed while pods may hold units."

    # Configuration
    CONFIGURATION_SELECTED = "ConfigurationSelected", "The file that configures this node."
    CONFIGURATION_CHANGED = "ConfigurationChanged", "The configuration file has new content."
    CONFIGURATION_INVALID = "ConfigurationInvalid", "The configuration is wrong or does not fit."
    CONFIGURATION_NOT_FOUND = "ConfigurationNotFound", "The selected configuration is missing."
    CONFIGURATION_WARNING = "ConfigurationWarning", "A setting is valid and probably a mistake."
    SETTINGS_APPLIED = "SettingsApplied", "The settings that are in force."
    WAITING_FOR_API_SERVER = "WaitingForAPIServer", "The node's label cannot be read yet."
    NODE_LABEL_UNKNOWN = "NodeLabelUnknown", "The program starts without the node's label."
    NODE_NOT_FOUND = "NodeNotFound", "The API server has no Node of this name."
    FLAG_IGNORED = "FlagIgnored", "A flag of a compatible program has no effect here."
    LINK_WRITTEN = "LinkWritten", "config-manager linked the configuration."
    LINK_NOT_WRITTEN = "LinkNotWritten", "config-manager cannot link the configuration."
    SIGNAL_SENT = "SignalSent", "config-manager signalled the device plugin."
    SIGNAL_FAILED = "SignalFailed", "config-manager found no process to signal, or may not."
    DIRECTORY_POLLED = "DirectoryPolled", "A directory cannot be watched and is polled."

    # Rules that do not fit the node
    NOTHING_TO_ADVERTISE = "NothingToAdvertise", "No GPU of the node can be advertised."
    TOO_MANY_DEVICES = "TooManyDevices", "The device list exceeds the kubelet's message limit."
    NUMA_NODES_OMITTED = "NUMANodesOmitted", "The device list has no room for NUMA nodes."
    CONFLICTING_RULES = "ConflictingRules", "Two rules claim a device or a resource name."
    MIG_NOT_UNIFORM = "MIGNotUniform", "migStrategy single needs identical MIG devices."
    MIG_NOT_SLICEABLE = "MIGNotSliceable", "A GPU in MIG mode cannot be sliced by memory."
    INVALID_REPLICAS = "InvalidReplicas", "A number of replicas is out of range."
    OVERCOMMITTED = "Overcommitted", "The shares of a GPU together have more than the GPU."
    THREADS_ROUNDED = "ThreadsRounded", "MPS rounds a number of SMs, so containers get another one."
    INVALID_SIZE = "InvalidSize", "A memory size is not valid."
    INVALID_ALLOCATED_DEVICES = (
        "InvalidAllocatedDevices",
        "The list of GPUs of a nested node is missing or wrong.",
    )
    NESTED_NOT_LIMITED = "NestedNotLimited", "A nested node cannot be limited to a share of a GPU."
    RULE_WITHOUT_EFFECT = "RuleWithoutEffect", "A rule matches no device of this node."
    DEVICE_NOT_FOUND = "DeviceNotFound", "A rule names a device that this node does not have."

    # GPUs
    XID = "XID", "The driver reported a critical error of a GPU."
    GPU_LOST = "GPULost", "A GPU does not answer any more."
    GPU_NOT_WATCHED = "GPUNotWatched", "Errors of a GPU cannot be watched."
    CDI_DEVICE_MISSING = "CDIDeviceMissing", "No CDI specification describes a device."
    NODE_UNREADABLE = "NodeUnreadable", "The GPUs of the node cannot be read."
    GPU_CHANGED = "GPUChanged", "A GPU changed, and the configuration does not fit it any more."
    FAULT_CLEARED = "FaultCleared", "A fault of a GPU is over."
    GPU_SKIPPED = "GPUSkipped", "A GPU is not advertised."
    GPU_IMPLAUSIBLE = "GPUImplausible", "The driver reports what cannot be true about a GPU."
    MIG_DEVICE_SKIPPED = "MIGDeviceSkipped", "A MIG device is not advertised."
    NO_DEVICE_MEMORY = "NoDeviceMemory", "A GPU has no memory of its own."
    NO_XID_EVENTS = "NoXIDEvents", "A GPU does not report XIDs."
    EVENT_WAIT_FAILED = "EventWaitFailed", "Waiting for errors of GPUs failed and is retried."
    HARDWARE_CHANGED = "HardwareChanged", "GPUs or MIG devices were added, removed or changed."
    WAITING_FOR_GPUS = "WaitingForGPUs", "The program waits for a driver and GPUs."
    RECONCILED = "Reconciled", "The configuration and the GPUs of the node were read again."
    RECONCILE_FAILED = "ReconcileFailed", "Settings or GPUs cannot be applied; a retry follows."
    RECOVERED = "Recovered", "Reconciling works again after a failure."
    IMEX_CHANNEL_MISSING = "IMEXChannelMissing", "An IMEX channel does not exist."
    NO_DRIVER = "NoDriver", "The NVIDIA driver is not loaded or cannot be used."
    NO_GPUS = "NoGPUs", "The driver lists no GPU that can be used."
    DRIVER_FAILED = "DriverFailed", "The driver does not list its GPUs."
    DRIVER_NOT_RESPONDING = "DriverNotResponding", "A call of the driver has not returned in time."
    DRIVER_REPLACED = "DriverReplaced", "Another driver is loaded; the program must restart."

    # CDI specifications
    CDI_SPEC_WRITTEN = "CDISpecWritten", "A CDI specification was written."
    CDI_SPEC_NOT_WRITTEN = "CDISpecNotWritten", "A CDI specification cannot be made or written."
    CDI_SPEC_OUTDATED = "CDISpecOutdated", "An earlier CDI specification cannot be updated."
    HOST_CDI_SPEC_IGNORED = "HostCDISpecIgnored", "A CDI specification of the host is not used."

    # MPS
    MPS_UNAVAILABLE = "MPSUnavailable", "An MPS control daemon does not answer."
    MPS_AVAILABLE = "MPSAvailable", "An MPS control daemon answers again."
    MPS_NOT_VERIFIED = "MPSNotVerified", "The agent cannot probe an MPS control daemon."
    NOT_LIMITED = "NotLimited", "Memory is counted, and MPS does not limit containers to it."
    NOT_EXCLUSIVE = "NotExclusive", "A GPU is not in EXCLUSIVE_PROCESS mode."
    MORE_UNITS_THAN_CLIENTS = "MoreUnitsThanClients", "A GPU has more units than MPS clients."
    MPS_STARTED = "MPSStarted", "An MPS control daemon was started."
    MPS_ONE_USER_AT_A_TIME = (
        "MPSOneUserAtATime",
        "The MPS of this driver serves the containers of one user at a time; others wait.",
    )
    MPS_DRAINING = (
        "MPSDraining",
        "An MPS control daemon that is about to stop waits for its clients.",
    )
    MPS_ADOPTED = "MPSAdopted", "A running MPS control daemon was adopted."
    MPS_FOREIGN = "MPSForeign", "Another program runs an MPS control daemon."
    MPS_REPLACED = "MPSReplaced", "An MPS control daemon is replaced; its clients fail."
    MPS_STOPPED = "MPSStopped", "An MPS control daemon was stopped."
    MPS_EXITED = "MPSExited", "An MPS control daemon exited unexpectedly."
    MPS_OUTDATED = "MPSOutdated", "The settings cannot be applied to an MPS control daemon."
    MPS_STOP_FAILED = "MPSStopFailed", "An MPS control daemon cannot be stopped."
    MPS_DEFAULT_REJECTED = "MPSDefaultRejected", "An MPS control daemon rejected a default limit."
    MPS_DEFAULT_CHANGED = (
        "MPSDefaultChanged",
        "Somebody changed default limits of an MPS control daemon; they are set right.",
    )
    MPS_NAMESPACES_UNAVAILABLE = (
        "MPSNamespacesUnavailable",
        "Containers have no namespaces of MPS: the driver or the MPS control daemon has none.",
    )
    MPS_NAMESPACE_FAILED = (
        "MPSNamespaceFailed",
        "A container gets no namespace of MPS with its limits.",
    )
    MPS_NAMESPACE_PUT = (
        "MPSNamespacePut",
        "Namespaces of MPS were made again, because their daemon had lost them.",
    )
    MPS_NAMESPACE_REMOVED = (
        "MPSNamespaceRemoved",
        "Namespaces of MPS were removed, because their containers are gone.",
    )
    MPS_SOCKETS_RESTORED = (
        "MPSSocketsRestored",
        "A container deleted or replaced sockets of an MPS control daemon; they are put back.",
    )
    MPS_SOCKETS_NOT_KEPT = (
        "MPSSocketsNotKept",
        "Sockets of an MPS control daemon cannot be put back if a container deletes them.",
    )
    SM_PARTITION_ADDED = "SMPartitionAdded", "A container got a static partition of SMs."
    SM_PARTITION_REMOVED = (
        "SMPartitionRemoved",
        "Static partitions of SMs of containers that are gone were removed.",
    )
    SM_PARTITION_UNAVAILABLE = (
        "SMPartitionUnavailable",
        "Containers cannot get static partitions of SMs.",
    )
    COMPUTE_MODE_NOT_RESTORED = "ComputeModeNotRestored", "A GPU may still be exclusive."
    MPS_EARLY_CLIENT = (
        "MPSEarlyClient",
        "A program used an MPS control daemon before its limits were set, and is ended.",
    )
    MPS_FILES_REMOVED = (
        "MPSFilesRemoved",
        "A container replaced files of an MPS control daemon; they were removed.",
    )
    MPS_SHARED_MEMORY_FAILED = (
        "MPSSharedMemoryFailed",
        "Shared memory of a daemon cannot be removed.",
    )
    MPS_SHARED_MEMORY_NOT_BOUNDED = (
        "MPSSharedMemoryNotBounded",
        "Shared memory of a daemon has no size limit of its own.",
    )
    SELINUX_LABEL_FAILED = "SELinuxLabelFailed", "SELinux may keep containers from MPS."
    MARKER_NOT_WRITTEN = "MarkerNotWritten", "A file that marks the state cannot be updated."
    NOTHING_TO_RUN = "NothingToRun", "No resource is shared by MPS."

    # Watchdog
    WATCHDOG_ON = "WatchdogOn", "The watchdog compares the memory of containers with their grants."
    WATCHDOG_OFF = "WatchdogOff", "The watchdog lacks rights that it needs, and does nothing."
    WATCHDOG_BLIND = (
        "WatchdogBlind",
        "The watchdog cannot read now which container uses how much memory.",
    )
    MEMORY_EXCEEDED = (
        "MemoryExceeded",
        "A container uses more memory of a GPU than it was granted.",
    )
    MEMORY_WITHIN_GRANT = (
        "MemoryWithinGrant",
        "A container that used too much memory of a GPU does so no longer.",
    )
    PROCESS_TERMINATED = (
        "ProcessTerminated",
        "MPS ended the CUDA contexts of a process of a container that used too much memory.",
    )
    PROCESS_KILLED = (
        "ProcessKilled",
        "A process of a container that used too much memory was killed.",
    )
    PROCESS_NOT_ENDED = (
        "ProcessNotEnded",
        "A process of a container that uses too much memory cannot be ended.",
    )
    POD_EVICTED = "PodEvicted", "A pod was evicted because a container used too much memory."
    POD_NOT_EVICTED = "PodNotEvicted", "A pod whose container uses too much memory stays."

    # Memory limits of the driver
    LIMITS_TIER = (
        "LimitsTier",
        "How firmly the limits of containers hold: counted, environment, watched or driver.",
    )
    MEMORY_LIMITED = (
        "MemoryLimited",
        "The driver limits the memory of all processes of a pod or a container together.",
    )
    MEMORY_NOT_LIMITED = (
        "MemoryNotLimited",
        "The driver does not limit the memory of a pod or a container by its cgroup.",
    )
    MEMORY_LIMIT_CHANGED = (
        "MemoryLimitChanged",
        "A cgroup had another memory limit than its grant, or none; it was set right.",
    )

    # Labels and events
    LABELS_PUBLISHED = "LabelsPublished", "Labels of the node changed."
    LABELS_OUTDATED = "LabelsOutdated", "Labels cannot be collected or published."
    LABELS_CURRENT = "LabelsCurrent", "Labels are current again."
    LABELS_NOT_REMOVED = "LabelsNotRemoved", "Outdated labels cannot be removed."
    LABELS_WITHOUT_OWNER = "LabelsWithoutOwner", "The owner of a NodeFeature cannot be read."
    NO_EVENTS = "NoEvents", "Events of the node are not recorded: there is no API server."
    EVENT_NOT_RECORDED = "EventNotRecorded", "An event of the node cannot be written."
    API_SERVER_UNAVAILABLE = "APIServerUnavailable", "The API server does not answer."
    API_SERVER_AVAILABLE = "APIServerAvailable", "The API server answers again."

    # The process
    METRICS_SERVED = "MetricsServed", "Metrics and probes are served at an address."
    METRICS_UNAVAILABLE = (
        "MetricsUnavailable",
        "Requests for metrics or probes cannot be answered now.",
    )
    TOO_FEW_DESCRIPTORS = (
        "TooFewDescriptors",
        "The limit of open files is too low, or it is reached.",
    )
    STOP_FORCED = "StopForced", "A part of the program does not stop, and the process exits."
    STOPPED = "Stopped", "The program stopped after SIGTERM or SIGINT."
