"""A daemon of another program at the place of ours."""

from __future__ import annotations

from gpuslice.codes import Code
from gpuslice.mps.daemon_plan import DaemonSpec
from gpuslice.mps.default_limits import max_threads_percent
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def report_foreign(wanted: DaemonSpec, ceiling: float) -> None:
    """`ceiling`: its default percentage of threads."""
    log.info(
        Code.MPS_FOREIGN,
        "another program runs the MPS control daemon, leaving it alone",
        daemon=wanted.name,
    )
    if ceiling < max_threads_percent(wanted):
        log.warning(
            Code.MPS_FOREIGN,
            "the default of that daemon limits every container, whatever its share is",
            daemon=wanted.name,
            threads_percent=ceiling,
            remedy="stop that daemon: a new one with the right limits is started",
        )
