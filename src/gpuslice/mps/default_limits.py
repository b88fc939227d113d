"""Default limits of a daemon: they apply to clients that unset their own limits."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.mps.control import CannotProbe, ControlClient, MpsTimeout, MpsUnavailable
from gpuslice.mps.daemon_plan import DaemonSpec
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_ALL_THREADS = 100


def max_threads_percent(wanted: DaemonSpec) -> int:
    """The largest of all GPUs, because a daemon has one default for all of them."""
    return max(
        (limits.threads_percent or _ALL_THREADS for limits in wanted.max_limits), default=100
    )


def default_commands(wanted: DaemonSpec, serves: Sequence[str]) -> tuple[str, ...]:
    """`serves`: the GPUs that the daemon sees, in its order.

    Memory limits name the GPU by its number there, because drivers before 560 ignore UUIDs.
    """
    threads = f"set_default_active_thread_percentage {max_threads_percent(wanted)}"
    memory = (
        f"set_default_device_pinned_mem_limit {number} {mib}M"
        for number, mib in _memory(wanted, serves)
    )
    return threads, *memory


def server_commands(wanted: DaemonSpec, serves: Sequence[str], server: str) -> tuple[str, ...]:
    """The same for a running server, which has a copy of the old defaults."""
    threads = f"set_active_thread_percentage {server} {max_threads_percent(wanted)}"
    memory = (
        f"set_device_pinned_mem_limit {server} {number} {mib}M"
        for number, mib in _memory(wanted, serves)
    )
    return threads, *memory


async def set_defaults(control: ControlClient, wanted: DaemonSpec, serves: Sequence[str]) -> None:
    """A daemon that rejects a limit is used all the same: containers have limits of their own."""
    commands = [*default_commands(wanted, serves)]
    for server in await control.servers():
        commands += server_commands(wanted, serves, server)
    for line in commands:
        try:
            await control.command(line)
        except (MpsTimeout, CannotProbe):
            raise
        except MpsUnavailable as error:
            log.warning(
                Code.MPS_DEFAULT_REJECTED,
                "MPS control daemon rejected a default limit",
                resource=wanted.resource,
                command=line,
                reason=error,
            )


def _memory(wanted: DaemonSpec, serves: Sequence[str]) -> list[tuple[int, int]]:
    return [
        (serves.index(gpu), limits.memory_mib)
        for gpu, limits in zip(wanted.gpus, wanted.max_limits, strict=True)
    ]
