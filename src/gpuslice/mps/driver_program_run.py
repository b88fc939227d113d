"""Runs a program of the driver with limits on its time and its output."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import shutil
import signal
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

# The longest answer of nvidia-cuda-mps-control has a line per client of a daemon.
_MAX_OUTPUT_BYTES = 64 << 10
_REASON_CHARACTERS = 300
# A process that hangs inside the driver does not end when it is killed.
_KILL_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class Finished:
    # Negative: killed by this signal.
    code: int
    text: str

    @property
    def reason(self) -> str:
        """Why it failed: its output, shortened, or its exit status."""
        if self.text:
            return shortened(self.text)
        return f"killed by signal {-self.code}" if self.code < 0 else f"exit status {self.code}"


class ProgramMissing(Exception):
    """It is not on PATH."""


class ProgramNotExecuted(Exception):
    """The kernel refuses to execute it."""


class ProgramTimeout(Exception):
    """It did not exit in time and was killed."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        super().__init__()
        self._process = process

    @property
    def still_runs(self) -> bool:
        """It hangs inside the driver."""
        return self._process.returncode is None


async def run_driver_program(
    argv: Sequence[str],
    seconds: float,
    *,
    env: Mapping[str, str] | None = None,
    input_text: str = "",
) -> Finished:
    """Input and output are files of a fixed size in memory, not pipes.

    So a program cannot fill our memory, and a daemon that it leaves behind can keep its output open
    without costing us anything. Output beyond the size is lost.
    """
    # By our own PATH: the environment of the program may have none.
    program = shutil.which(argv[0]) or shutil.which(argv[0], mode=os.F_OK)
    if program is None:
        raise ProgramMissing
    with (
        _file_in_memory(input_text.encode()) as standard_input,
        _file_in_memory(b"", _MAX_OUTPUT_BYTES) as output,
    ):
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *argv[1:],
                stdin=standard_input,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=env,
                start_new_session=True,
            )
        except OSError as error:
            raise ProgramNotExecuted(f"{program} cannot be run ({error.strerror})") from error
        code = await _exit_status(process, seconds)
        # Programs write at the position that they share with us.
        written = os.lseek(output, 0, os.SEEK_CUR)
        return Finished(code, os.pread(output, written, 0).decode(errors="replace").strip())


def shortened(text: str, characters: int = _REASON_CHARACTERS) -> str:
    """One line, with the beginning and the end of the text."""
    line = " ".join(text.split())
    if len(line) <= characters:
        return line
    return f"{line[: characters * 2 // 3]} … {line[-characters // 3 :]}"


async def _exit_status(process: asyncio.subprocess.Process, seconds: float) -> int:
    try:
        async with asyncio.timeout(seconds):
            return await process.wait()
    except TimeoutError:
        _kill_group(process)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_KILL_SECONDS):
                await process.wait()
        raise ProgramTimeout(process) from None
    finally:
        if process.returncode is None:
            _kill_group(process)


def _kill_group(process: asyncio.subprocess.Process) -> None:
    """Kills the process and its children. Does not wait: it may hang in the driver."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@contextlib.contextmanager
def _file_in_memory(content: bytes, size: int | None = None) -> Iterator[int]:
    """A file with this content. With a size, it has that size and cannot grow."""
    descriptor = os.memfd_create("gpuslice", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.pwrite(descriptor, content, 0)
        if size is not None:
            os.ftruncate(descriptor, size)
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)
        yield descriptor
    finally:
        os.close(descriptor)
