"""Sends commands to an MPS control daemon through NVIDIA's control program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

from gpuslice.mps.daemon_paths import resource_of

PROGRAM = "nvidia-cuda-mps-control"
# Exit statuses of a program whose file or libraries cannot be loaded.
_NOT_EXECUTED = (126, 127)


class MpsUnavailable(Exception):
    """The daemon does not answer, so it enforces no limits."""


class CannotProbe(MpsUnavailable):
    """The control program cannot be run, so the state of the daemon is unknown."""


class DriverProgramMissing(CannotProbe):
    """A program of the driver is not on PATH."""

    def __init__(self, program: str) -> None:
        super().__init__(
            f"{program} is not on PATH: run this container with "
            "NVIDIA_DRIVER_CAPABILITIES=compute,utility"
        )


class MpsTimeout(MpsUnavailable):
    """The daemon does not answer in time."""


class ControlClient:
    """Sends commands to the daemon of one pipe directory."""

    def __init__(self, pipe_directory: str, timeout_seconds: float) -> None:
        self._pipe = pipe_directory
        self._timeout_seconds = timeout_seconds

    async def ping(self) -> None:
        """A round trip: a crashed daemon leaves its socket behind, so a file proves nothing."""
        await self.default_threads_percent()

    async def default_threads_percent(self) -> str:
        """The share of threads that no client of the daemon exceeds, as the daemon prints it."""
        return await self.command("get_default_active_thread_percentage")

    async def command(self, line: str, timeout_seconds: float | None = None) -> str:
        """Runs one command and returns its output. Raises MpsUnavailable."""
        return await _run_command(self._pipe, line, timeout_seconds or self._timeout_seconds)


async def _run_command(pipe_directory: str, line: str, seconds: float) -> str:
    try:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe_directory},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise DriverProgramMissing(PROGRAM) from error
    except OSError as error:
        raise CannotProbe(f"{PROGRAM} cannot be run ({error.strerror})") from error
    try:
        async with asyncio.timeout(seconds):
            output, _ = await process.communicate(f"{line}\n".encode())
    except TimeoutError:
        raise MpsTimeout(
            f"the MPS control daemon at {pipe_directory} did not answer {line!r} "
            f"within {seconds:g} s"
        ) from None
    finally:
        if process.returncode is None:
            kill_group(process)
    text = output.decode(errors="replace").strip()
    code = process.returncode or 0
    if code < 0 or code in _NOT_EXECUTED:
        raise CannotProbe(
            f"{PROGRAM} failed before it reached the daemon at {pipe_directory} "
            f"({text or _ending(code)}): check the driver's files and the node's memory"
        )
    if code != 0:
        raise MpsUnavailable(
            f"no MPS control daemon answers at {pipe_directory} ({text or code}): "
            f"{_remedy(pipe_directory)}"
        )
    return text


def kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills the process and its children. Does not wait: it may hang in the driver."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def _ending(code: int) -> str:
    return f"killed by signal {-code}" if code < 0 else f"exit status {code}"


def _remedy(pipe_directory: str) -> str:
    resource = resource_of(pipe_directory)
    if resource is None:
        return f"start it with CUDA_MPS_PIPE_DIRECTORY={pipe_directory} {PROGRAM} -d"
    return (
        "run mps-control-daemon on this node with the same configuration; the daemon for "
        f"{resource} listens at <mps-root>/{resource}/pipe on the host"
    )
