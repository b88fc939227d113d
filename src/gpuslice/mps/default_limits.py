"""Default limits of a daemon: they apply to clients that unset their own limits."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.mps.control import (
    CannotProbe,
    ControlClient,
    MpsTimeout,
    MpsUnavailable,
    parse_percent,
)
from gpuslice.mps.daemon_plan import DaemonSpec
from gpuslice.mps.driver_program_run import shortened
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_ALL_THREADS = 100
_PRINTED_LIMIT = re.compile(r"(\d+)([MG])")


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
        for number, mib in memory_by_number(wanted, serves)
    )
    return threads, *memory


def server_commands(wanted: DaemonSpec, serves: Sequence[str], server: str) -> tuple[str, ...]:
    """The same for a running server, which has a copy of the old defaults."""
    threads = f"set_active_thread_percentage {server} {max_threads_percent(wanted)}"
    memory = (
        f"set_device_pinned_mem_limit {server} {number} {mib}M"
        for number, mib in memory_by_number(wanted, serves)
    )
    return threads, *memory


async def set_defaults(control: ControlClient, wanted: DaemonSpec, serves: Sequence[str]) -> None:
    """A daemon that rejects a limit is used all the same: containers have limits of their own."""
    await _send_defaults(control, wanted, serves)
    for server in await control.servers():
        for line in server_commands(wanted, serves, server):
            await _send(control, wanted, line)
        wrong = await _wrong_limits(control, wanted, serves, server)
        # A server that has ended meanwhile has no limits.
        if wrong and server in await control.servers():
            for command, found in wrong:
                _rejected(wanted, command, found)


async def set_first_defaults(
    control: ControlClient, wanted: DaemonSpec, serves: Sequence[str]
) -> None:
    """For a daemon that has just started.

    A program that is waiting for the daemon may use it before its limits are set. Servers keep the
    limits that a program had when it connected, so such a server is shut down. Raises
    MpsUnavailable if it cannot be.
    """
    await _send_defaults(control, wanted, serves)
    early = await control.servers()
    for server in early:
        log.warning(
            Code.MPS_EARLY_CLIENT,
            "a program used the MPS control daemon before its limits were set, ending its server",
            daemon=wanted.name,
            server=server,
        )
        await control.command(f"shutdown_server {server} -f")
    if remaining := set(early).intersection(await control.servers()):
        raise MpsUnavailable(
            f"the MPS server {', '.join(sorted(remaining))} started before the limits of "
            f"{wanted.name} were set, and cannot be shut down"
        )


async def _send_defaults(control: ControlClient, wanted: DaemonSpec, serves: Sequence[str]) -> None:
    for line in default_commands(wanted, serves):
        await _send(control, wanted, line)
    for command, found in await _wrong_limits(control, wanted, serves):
        _rejected(wanted, command, found)


async def _wrong_limits(
    control: ControlClient, wanted: DaemonSpec, serves: Sequence[str], server: str = ""
) -> list[tuple[str, str]]:
    """Commands without effect, and why: limits of a server, or the defaults of the daemon.

    The program also exits with 0 if it rejects a value, so only reading it back tells.
    """
    if server:
        threads, memory = f"active_thread_percentage {server}", f"device_pinned_mem_limit {server}"
    else:
        threads, memory = "default_active_thread_percentage", "default_device_pinned_mem_limit"
    wrong = []
    text = await control.command(f"get_{threads}")
    percent = parse_percent(text)
    if percent is None or percent > max_threads_percent(wanted):
        wrong.append((f"set_{threads} {max_threads_percent(wanted)}", _found(text)))
    for number, mib in memory_by_number(wanted, serves):
        text = await control.command(f"get_{memory} {number}")
        if not memory_limit_holds(text, mib):
            wrong.append((f"set_{memory} {number} {mib}M", _found(text)))
    return wrong


def _found(text: str) -> str:
    return f"it is {shortened(text) or 'not set'}"


def memory_limit_holds(text: str, mib: int) -> bool:
    """Whether a limit that the daemon prints is this one. It prints whole GiB, rounded down."""
    found = _PRINTED_LIMIT.fullmatch(text)
    if found is None:
        return False
    unit = 1024 if found[2] == "G" else 1
    return mib - unit < int(found[1]) * unit <= mib


async def _send(control: ControlClient, wanted: DaemonSpec, line: str) -> None:
    try:
        await control.command(line)
    except (MpsTimeout, CannotProbe):
        raise
    except MpsUnavailable as error:
        _rejected(wanted, line, error)


def _rejected(wanted: DaemonSpec, command: str, reason: object) -> None:
    log.warning(
        Code.MPS_DEFAULT_REJECTED,
        "MPS control daemon rejected a default limit",
        daemon=wanted.name,
        command=command,
        reason=reason,
    )


def memory_by_number(wanted: DaemonSpec, serves: Sequence[str]) -> list[tuple[int, int]]:
    """The number of each GPU in the daemon, and its limit in MiB."""
    return [
        (serves.index(gpu), limits.memory_mib)
        for gpu, limits in zip(wanted.gpus, wanted.max_limits, strict=True)
    ]
