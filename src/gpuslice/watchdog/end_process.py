"""Ends a process of a container, if it is certain that it is still that process."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable

from gpuslice.mps.control import ControlClient, MpsUnavailable
from gpuslice.mps.driver_program_run import shortened
from gpuslice.mps.namespace_control import NamespaceControl
from gpuslice.watchdog.process_files import ContainedProcess, read_process

# What the control program prints if it ended the contexts of a client.
_DONE = "0"


class ProcessNotEnded(Exception):
    """The message says why."""


async def terminate_client(
    target: ContainedProcess, daemons: Iterable[ControlClient | NamespaceControl]
) -> None:
    """MPS ends its contexts: a client that is killed within a kernel can harm others.

    Raises ProcessNotEnded.
    """
    pid = target.process.pid
    problems = []
    for control in daemons:
        try:
            if isinstance(control, NamespaceControl):
                if pid in await control.client_pids():
                    _check(target)
                    problem = await control.terminate(pid)
                    if not problem:
                        return
                    problems.append(f"MPS answers {problem!r}")
                continue
            for server in await control.servers():
                clients = (await control.command(f"get_client_list {server}")).split()
                if str(pid) not in clients:
                    continue
                _check(target)
                answer = await control.command(f"terminate_client {server} {pid}")
                if answer.strip() == _DONE:
                    return
                problems.append(f"MPS answers {shortened(answer)!r}")
        except MpsUnavailable as error:
            problems.append(str(error))
    raise ProcessNotEnded("; ".join(problems) or "it is not a client of MPS")


def kill_process(target: ContainedProcess) -> None:
    """Raises ProcessNotEnded."""
    try:
        # The descriptor refers to this process, even if its pid is used again.
        descriptor = os.pidfd_open(target.process.pid)
    except OSError as error:
        raise ProcessNotEnded(error.strerror or "it has ended") from error
    try:
        _check(target)
        if select.select([descriptor], [], [], 0)[0]:
            raise ProcessNotEnded("it has ended")
        signal.pidfd_send_signal(descriptor, signal.SIGKILL)
    except PermissionError as error:
        raise ProcessNotEnded(
            f"{error.strerror}: the capability KILL is missing, see docs/security.md"
        ) from error
    except OSError as error:
        raise ProcessNotEnded(error.strerror or "it has ended") from error
    finally:
        os.close(descriptor)


def _check(target: ContainedProcess) -> None:
    if read_process(target.process.pid) != target:
        raise ProcessNotEnded("it has ended, or another process has its pid")
