"""The life cycle of a process: signals, shutdown, and one error for everything that went wrong."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, NoReturn, TypeVar

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.kubelet.errors import PluginServerError
from gpuslice.node.errors import DriverReplaced, ProgramError
from gpuslice.node.free_memory import share_heaps
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.programs.descriptor_limit import raise_descriptor_limit
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.stack_dump import dump_stacks

log = Logger(__name__)

_E = TypeVar("_E", bound=BaseException)


def run_program(
    program: Coroutine[Any, Any, None], hangs: Callable[[], object] = lambda: False
) -> None:
    """Raises ProgramError or ConfigError if the program cannot do its work.

    `hangs`: a thread is inside a call that does not return. The process must exit without running
    destructors of the library that the thread is in, because they may wait for it.
    """
    failure: BaseException | None = None
    share_heaps()
    try:
        raise_descriptor_limit()
    except ProgramError:
        program.close()
        raise
    try:
        asyncio.run(program)
    except* (ProgramError, PluginServerError, DriverReplaced) as failures:
        failure = _joined([*_leaves(failures)])
    except* ConfigError as failures:
        failure = next(_leaves(failures))
    # Not raised from within, where Python 3.11.2 would wrap it in a group.
    at_once = bool(hangs())
    if isinstance(failure, ProgramError):
        failure.at_once = at_once
    if failure is not None:
        raise failure
    if at_once:
        exit_at_once(0)


async def until_stopped(
    work: Coroutine[Any, Any, None], triggers: Triggers, stop_seconds: float | None = None
) -> None:
    """SIGTERM and SIGINT stop the work, SIGHUP resets it, SIGQUIT prints all stacks.

    After `stop_seconds` the process exits, whatever the work waits for.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()

    def stop_work() -> None:
        stop.set()
        if stop_seconds is not None:
            _exit_after(stop_seconds)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop_work)
    loop.add_signal_handler(signal.SIGHUP, triggers.add, Trigger.RESET)
    loop.add_signal_handler(signal.SIGQUIT, dump_stacks)
    working = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait())
    await asyncio.wait([working, stopping], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working


def exit_at_once(status: int) -> NoReturn:
    """Without waiting for any thread."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _exit_after(seconds: float) -> None:
    def exit_now() -> None:
        log.error(Code.STOP_FORCED, "a part of the program does not stop: exiting without it")
        exit_at_once(1)

    timer = threading.Timer(seconds, exit_now)
    timer.daemon = True
    timer.start()


def _joined(errors: Sequence[ProgramError | PluginServerError | DriverReplaced]) -> ProgramError:
    return ProgramError(errors[0].code, "; ".join(map(str, errors)))


def _leaves(group: BaseExceptionGroup[_E]) -> Iterator[_E]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
