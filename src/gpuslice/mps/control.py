"""Talks to an MPS control daemon through its own command line."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal

_PROGRAM = "nvidia-cuda-mps-control"
_TIMEOUT_SECONDS = 5.0


class MpsUnavailable(Exception):
    """The daemon does not answer, so its clients would run without limits."""


class ControlProgramMissing(MpsUnavailable):
    """The driver's control program is not on PATH, so nothing can be said about the daemon."""


async def ping(pipe_directory: str) -> None:
    """A command round trip: after a crash the socket stays behind, so a file proves nothing."""
    await command(pipe_directory, "get_default_active_thread_percentage")


async def command(pipe_directory: str, line: str) -> str:
    """Runs one command and returns what it printed."""
    try:
        process = await asyncio.create_subprocess_exec(
            _PROGRAM,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": pipe_directory},
            start_new_session=True,
        )
    except FileNotFoundError as error:
        raise ControlProgramMissing(
            f"{_PROGRAM} is not on PATH: give the agent the driver's compute programs"
        ) from error
    except OSError as error:
        raise MpsUnavailable(f"{_PROGRAM} cannot be run ({error.strerror})") from error
    try:
        async with asyncio.timeout(_TIMEOUT_SECONDS):
            output, _ = await process.communicate(f"{line}\n".encode())
    except TimeoutError:
        raise MpsUnavailable(
            f"the MPS control daemon at {pipe_directory} did not answer {line!r} "
            f"within {_TIMEOUT_SECONDS:g} s"
        ) from None
    finally:
        if process.returncode is None:
            _kill(process)
    text = output.decode(errors="replace").strip()
    if process.returncode != 0:
        raise MpsUnavailable(
            f"no MPS control daemon answers at {pipe_directory} ({text or process.returncode}): "
            f"start it with CUDA_MPS_PIPE_DIRECTORY={pipe_directory} {_PROGRAM} -d"
        )
    return text


def _kill(process: asyncio.subprocess.Process) -> None:
    """With all that it started. Not waited for: it may be stuck in the driver."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
