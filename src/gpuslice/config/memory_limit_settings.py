"""Settings and options of memory limits that the driver enforces for cgroups."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuslice.config.option_definition import Option
from gpuslice.config.validation import check_absolute_path

CGROUP_ROOT = "/sys/fs/cgroup"


class MemoryLimitMode(Enum):
    """Whether the driver limits the memory of all processes of a container together."""

    AUTO = "auto"  # if it can
    DRIVER = "driver"  # containers do not start if it cannot
    OFF = "off"


@dataclass(frozen=True, slots=True)
class MemoryLimitSettings:
    mode: MemoryLimitMode = MemoryLimitMode.AUTO
    # The host's mount of cgroup version 2, as the agent sees it.
    cgroup_root: str = CGROUP_ROOT

    def __post_init__(self) -> None:
        check_absolute_path("cgroup-root", self.cgroup_root, "it is mounted from the host")


MEMORY_LIMIT_DEFAULTS = MemoryLimitSettings()

MEMORY_LIMIT_OPTIONS = (
    Option(
        "memory-limits",
        "Whether the driver limits the memory of all processes of a container together, by its "
        "cgroup: auto (if it can: driver 615 or newer), driver (containers do not start if it "
        "cannot) or off.",
        "auto with gpuslice agent, off with nvidia-device-plugin",
        ("GPUSLICE_MEMORY_LIMITS",),
        key="flags.memoryLimits",
    ),
    Option(
        "cgroup-root",
        "Directory where the host's cgroups of version 2 are mounted.",
        CGROUP_ROOT,
        ("GPUSLICE_CGROUP_ROOT",),
        key="flags.cgroupRoot",
    ),
)
