"""The default limits of a daemon: they hold a client that has taken its own off."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.mps.control import CannotAsk, MpsSilent, MpsUnavailable, command
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.daemon_plan import Wanted
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_ALL_THREADS = 100


def most_threads_percent(wanted: Wanted) -> int:
    """One figure for all GPUs of a daemon, so the largest: no container may get less than its."""
    return max((limits.threads_percent or _ALL_THREADS for limits in wanted.most), default=100)


def default_commands(wanted: Wanted, serves: Sequence[str]) -> tuple[str, ...]:
    """`serves`: the GPUs that the daemon sees, in its order.

    Memory is by the GPU's number there, which drivers before 560 apply too.
    """
    threads = f"set_default_active_thread_percentage {most_threads_percent(wanted)}"
    memory = (
        f"set_default_device_pinned_mem_limit {number} {mib}M"
        for number, mib in _memory(wanted, serves)
    )
    return threads, *memory


def server_commands(wanted: Wanted, serves: Sequence[str], server: str) -> tuple[str, ...]:
    """The same for new clients of a server that runs already, which has copied the defaults."""
    threads = f"set_active_thread_percentage {server} {most_threads_percent(wanted)}"
    memory = (
        f"set_device_pinned_mem_limit {server} {number} {mib}M"
        for number, mib in _memory(wanted, serves)
    )
    return threads, *memory


async def set_defaults(place: DaemonPaths, wanted: Wanted, serves: Sequence[str]) -> None:
    """A daemon that refuses serves nevertheless, as containers bring limits of their own."""
    pipe = str(place.pipe)
    commands = [*default_commands(wanted, serves)]
    for server in (await command(pipe, "get_server_list")).split():
        commands += server_commands(wanted, serves, server)
    for line in commands:
        try:
            await command(pipe, line)
        except (MpsSilent, CannotAsk):
            raise
        except MpsUnavailable as error:
            log.warning(
                "the MPS daemon does not take a default limit",
                resource=wanted.resource,
                command=line,
                reason=error,
            )


def _memory(wanted: Wanted, serves: Sequence[str]) -> list[tuple[int, int]]:
    return [
        (serves.index(gpu), limits.memory_mib)
        for gpu, limits in zip(wanted.gpus, wanted.most, strict=True)
    ]
