"""Quick intervals for daemons under test."""

from __future__ import annotations

from gpuslice.config.timing import VARIABLE

# No test waits for an interval of a daemon. Time limits are not shortened: machines are noisy.
QUICK = {
    "hardware_scan": 0.3,
    "retry": 0.2,
    "gpu_probe": 0.3,
    "gpu_event_retry": 0.1,
    "usage_poll": 0.2,
    "usage_settle": 0.05,
    "refusal": 0.02,
    "cdi_probe": 0.3,
    "bound_spec_scan": 0.3,
    "bound_spec_keep": 2.0,
    "mps_probe": 0.3,
    "mps_daemon_probe": 0.3,
    "watchdog_scan": 0.2,
    "watchdog_step": 0.3,
    "memory_limit_scan": 0.3,
    "memory_limit_poll": 0.05,
    "mps_restart": 0.05,
    "mps_drain": 0.3,
    "directory_resync": 1.0,
    "metrics_cache": 0.001,
}


def timing(**changes: float) -> dict[str, str]:
    """The variable that gives a daemon these times instead, and the quick ones otherwise."""
    times = (f"{name}={seconds}" for name, seconds in (QUICK | changes).items())
    return {VARIABLE: ",".join(times)}
