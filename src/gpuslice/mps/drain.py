"""Waits until no CUDA program uses a daemon that is about to stop."""

from __future__ import annotations

import asyncio
import contextlib

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemon_control import DaemonControl
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


async def drain(control: DaemonControl, paths: DaemonPaths, timing: Timing) -> None:
    """Returns when the last program has ended, or after a time limit.

    Until `end_drain`, the agent lets no container start that would use the daemon.
    """
    # The agent waits without it, too, as soon as the daemon does not answer.
    with contextlib.suppress(OSError):
        paths.draining.touch()
    if not (clients := await _clients(control)):
        return
    log.info(
        Code.MPS_DRAINING,
        "waiting for CUDA programs before the MPS control daemon stops",
        daemon=paths.name,
        programs=clients,
        seconds=f"{timing.mps_drain:g}",
    )
    clock = asyncio.get_running_loop().time
    deadline = clock() + timing.mps_drain
    while clients and (remaining := deadline - clock()) > 0:
        await asyncio.sleep(min(timing.mps_daemon_probe, remaining))
        clients = await _clients(control)
    if clients:
        log.warning(
            Code.MPS_DRAINING,
            "CUDA programs still use the MPS control daemon, stopping it: they fail",
            daemon=paths.name,
            programs=clients,
        )


def end_drain(paths: DaemonPaths) -> None:
    """The daemon has stopped, or a new one runs."""
    with contextlib.suppress(OSError):
        paths.draining.unlink(missing_ok=True)


async def _clients(control: DaemonControl) -> int:
    """None can be waited for if the daemon does not answer."""
    try:
        return await control.clients()
    except MpsUnavailable:
        return 0
