"""The life cycle of a process: signals, shutdown, and one error for everything that went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Coroutine, Iterator, Sequence
from typing import Any, TypeVar

from gpuslice.config.errors import ConfigError
from gpuslice.kubelet.errors import PluginServerError
from gpuslice.node.errors import DriverReplaced, ProgramError
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.telemetry.stack_dump import dump_stacks

_E = TypeVar("_E", bound=BaseException)


def run_program(program: Coroutine[Any, Any, None]) -> None:
    """Raises ProgramError or ConfigError if the program cannot do its work."""
    failure: BaseException | None = None
    try:
        asyncio.run(program)
    except* (ProgramError, PluginServerError, DriverReplaced) as failures:
        failure = _joined([*_leaves(failures)])
    except* ConfigError as failures:
        failure = next(_leaves(failures))
    # Not raised from within, where Python 3.11.2 would wrap it in a group.
    if failure is not None:
        raise failure


async def until_stopped(work: Coroutine[Any, Any, None], triggers: Triggers) -> None:
    """SIGTERM and SIGINT stop the work, SIGHUP resets it, SIGQUIT prints all stacks."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, triggers.add, Trigger.RESET)
    loop.add_signal_handler(signal.SIGQUIT, dump_stacks)
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def _joined(errors: Sequence[ProgramError | PluginServerError | DriverReplaced]) -> ProgramError:
    return ProgramError(errors[0].code, "; ".join(map(str, errors)))


def _leaves(group: BaseExceptionGroup[_E]) -> Iterator[_E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
