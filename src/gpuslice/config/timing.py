"""How often the daemons probe, poll and retry, and how long they wait."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

from gpuslice.config.errors import ConfigError

VARIABLE = "GPUSLICE_TIMING"


@dataclass(frozen=True, slots=True)
class Timing:
    """In seconds. The defaults suit every node; tests use shorter times."""

    # Scan for GPUs and MIG devices that were added, removed or changed.
    hardware_scan: float = 10.0
    # After settings or GPUs could not be applied.
    retry: float = 5.0
    # Probe each GPU: a lost one does not always send an event.
    gpu_probe: float = 5.0
    # After waiting for events of GPUs failed.
    gpu_event_retry: float = 1.0
    # Until a GPU whose errors can no longer be watched is unhealthy.
    gpu_unwatched: float = 10.0
    # Until a call of the driver counts as hanging, and until opening the driver does.
    driver_answer: float = 10.0
    driver_open: float = 60.0
    # Until the end of a program does not wait for the driver any more.
    driver_close: float = 2.0
    # Until a program that was told to stop exits, whatever it waits for.
    stop: float = 20.0
    # Read from the kubelet which devices are in use.
    usage_poll: float = 2.0
    # After the kubelet allocated devices, until the node advertises others.
    usage_settle: float = 0.5
    # Before Allocate is rejected again, after it was rejected.
    refusal: float = 1.0
    # The agent probes MPS control daemons.
    mps_probe: float = 5.0
    # The program that runs MPS control daemons probes them.
    mps_daemon_probe: float = 3.0
    # Before the first restart of an MPS control daemon; each further one waits twice as long.
    mps_restart: float = 0.5
    # Until a command to an MPS control daemon counts as failed.
    mps_command: float = 5.0
    # Until an MPS control daemon is stopped although CUDA programs use it.
    mps_drain: float = 30.0
    # Until an MPS control daemon answers `quit`, and then until its process exits.
    mps_quit: float = 10.0
    mps_exit: float = 5.0
    # The watchdog reads the memory of containers.
    watchdog_scan: float = 5.0
    # Between two steps of the watchdog against a process, and between two attempts to evict a pod.
    watchdog_step: float = 10.0
    # Compare the memory limits of cgroups in the driver with those that pods must have.
    memory_limit_scan: float = 5.0
    # After a container was allowed to start: search for its cgroup, and for how long.
    memory_limit_poll: float = 0.2
    memory_limit_start: float = 30.0
    # Until a configuration that is being read or checked counts as invalid.
    config_check: float = 30.0
    # Search for lists of nested nodes that no container uses, and how long to keep them at least.
    nested_file_scan: float = 600.0
    nested_file_keep: float = 3600.0
    # Until a container starts although its runtime has not read its CDI specification.
    cdi_read: float = 0.5
    # Check whether the runtime reads CDI specifications, as long as it does not.
    cdi_probe: float = 60.0
    # Search for CDI specifications of containers that are gone, and how long to keep them at least.
    bound_spec_scan: float = 60.0
    bound_spec_keep: float = 60.0
    # Until a program starts without the label of its node.
    node_label: float = 10.0
    # Check a directory without an event, for changes that inotify does not report.
    directory_resync: float = 5.0
    # Until a client of metrics and probes has sent its request, and until it has read the answer.
    http_client: float = 5.0
    # Metrics are rendered again after this time, however often they are read.
    metrics_cache: float = 1.0


def read_timing(environment: Mapping[str, str]) -> Timing:
    """From GPUSLICE_TIMING, for example `retry=0.1,mps_probe=0.2`. Raises ConfigError."""
    changes = [part.strip() for part in environment.get(VARIABLE, "").split(",") if part.strip()]
    return replace(Timing(), **dict(map(_parse, changes)))


def _parse(change: str) -> tuple[str, float]:
    name, _, text = change.partition("=")
    names = [field.name for field in fields(Timing)]
    if name not in names:
        raise ConfigError(VARIABLE, change, f"use name=seconds with one of {', '.join(names)}")
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0.0 < seconds < 86_400.0:
        raise ConfigError(VARIABLE, change, "use a positive number of seconds, at most a day")
    return name, seconds
