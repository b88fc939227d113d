"""Settings and options of the watchdog."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuslice.config.option_definition import Option
from gpuslice.config.validation import check_absolute_path

CONTAINER_LOGS = "/var/log/containers"


class WatchdogMode(Enum):
    """What happens to a container that uses more memory than it was granted."""

    OFF = "off"
    REPORT = "report"  # events of the pod, log and metrics
    TERMINATE = "terminate"  # also ends its newest processes
    EVICT = "evict"  # also evicts its pod


@dataclass(frozen=True, slots=True)
class WatchdogSettings:
    mode: WatchdogMode = WatchdogMode.REPORT
    # How long a container may use too much.
    grace_seconds: float = 30.0
    # What each of its processes may use in addition. MPS counts contexts towards its limits, but
    # that was measured in steps of this size only, so the driver may report more than MPS counts.
    slack_mib: int = 256
    # The directory with the kubelet's links to the logs of containers, as the agent sees it.
    container_logs: str = CONTAINER_LOGS

    def __post_init__(self) -> None:
        check_absolute_path("container-logs", self.container_logs, "it is mounted from the host")


WATCHDOG_DEFAULTS = WatchdogSettings()

WATCHDOG_OPTIONS = (
    Option(
        "watchdog-mode",
        "What to do if all processes of a container together use more memory of a GPU than it was "
        "granted: off, report, terminate (the newest processes) or evict (the pod).",
        "report",
        ("GPUSLICE_WATCHDOG_MODE",),
        key="watchdog.mode",
    ),
    Option(
        "watchdog-grace",
        "How long a container may use too much before anything is ended, for example 30s.",
        "30s",
        ("GPUSLICE_WATCHDOG_GRACE",),
        key="watchdog.grace",
    ),
    Option(
        "watchdog-slack",
        "Memory that each process of a container may use in addition to the grant, all together at "
        "most a quarter of it.",
        "256MiB",
        ("GPUSLICE_WATCHDOG_SLACK",),
        key="watchdog.slack",
    ),
    Option(
        "container-logs",
        "Directory with the kubelet's links to logs, which have the names of containers. Logs are "
        "not read.",
        CONTAINER_LOGS,
        ("GPUSLICE_CONTAINER_LOGS",),
        key="watchdog.containerLogs",
    ),
)
