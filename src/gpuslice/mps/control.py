"""Sends commands to an MPS control daemon through NVIDIA's control program."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
from pathlib import Path

from gpuslice.mps.daemon_paths import CONTROL, daemon_of
from gpuslice.mps.driver_program_run import (
    Finished,
    ProgramMissing,
    ProgramNotExecuted,
    ProgramTimeout,
    run_driver_program,
    shortened,
)

PROGRAM = "nvidia-cuda-mps-control"
# Exit statuses of a program whose file or libraries cannot be loaded.
_NOT_EXECUTED = (126, 127)
# A command that always has an answer.
_PROOF = "get_default_active_thread_percentage"
# What the program prints, besides nothing, if the daemon drops its connection.
DROPPED = "Cannot send command to MPS control daemon process"
# How long a daemon that quits waits for clients. They were waited for before.
_QUIT_SECONDS = 1
# Between two attempts: the other program holds its connection for some milliseconds.
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 0.02, 0.5


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


class MpsBusy(MpsUnavailable):
    """The daemon runs, but another program occupies it, so the command had no effect."""


class ControlClient:
    """Sends commands to the daemon of one pipe directory.

    A daemon serves one control program at a time. It drops the connections of all others, which
    then exit with 0 or 1 and usually print nothing. So a command counts only if the same connection
    also answers a command that always has an answer. Otherwise it is repeated.
    """

    def __init__(self, pipe_directory: str, timeout_seconds: float) -> None:
        self._pipe = pipe_directory
        self._timeout_seconds = timeout_seconds
        # A command that was killed and has not ended.
        self._hanging: ProgramTimeout | None = None

    async def ping(self) -> None:
        """A round trip: a crashed daemon leaves its socket behind, so a file proves nothing.

        The control program of root uses the privileged socket, and CUDA programs the other one.
        """
        await self.default_threads_percent()
        if not (Path(self._pipe) / CONTROL).is_socket():
            raise MpsUnavailable(
                f"the socket {self._pipe}/{CONTROL} was deleted, so CUDA programs cannot reach the "
                "MPS control daemon: restart it"
            )

    async def default_threads_percent(self) -> float:
        """The share of threads that no client of the daemon exceeds.

        The program also exits with 0 if it rejects a command, and a container can replace the
        socket of the daemon, so only a valid answer proves that the daemon answers.
        """
        text = await self._answered([_PROOF], self._timeout_seconds)
        percent = parse_percent(text)
        if percent is None:
            raise self._unexpected(_PROOF, text, "a percentage")
        return percent

    async def servers(self) -> list[str]:
        """Process ids of the servers of the daemon."""
        line = "get_server_list"
        text = await self.command(line)
        pids = text.split()
        if not all(pid.isascii() and pid.isdigit() for pid in pids):
            raise self._unexpected(line, text, "process ids")
        return pids

    async def clients(self) -> int:
        """How many processes use a server of the daemon."""
        lists = [await self.command(f"get_client_list {pid}") for pid in await self.servers()]
        # A server that has ended meanwhile is answered with a sentence.
        return sum(line.strip().isdecimal() for text in lists for line in text.splitlines())

    def _unexpected(self, line: str, text: str, expected: str) -> MpsUnavailable:
        return MpsUnavailable(
            f"the MPS control daemon at {self._pipe} answers {line!r} with {shortened(text)!r} "
            f"instead of {expected}: {_remedy(self._pipe)}"
        )

    async def command(self, line: str) -> str:
        """Runs one command and returns its output. Raises MpsUnavailable."""
        text = await self._answered([line, _PROOF], self._timeout_seconds)
        answer, _, proof = text.rpartition("\n")
        if parse_percent(proof) is None:
            raise self._unexpected(line, text, "an answer and a percentage")
        return answer

    async def quit(self, seconds: float) -> None:
        """Repeats the command until no daemon answers: only that shows that it was accepted."""
        with contextlib.suppress(MpsUnavailable):
            # Without a time, it would wait for its last client, however long.
            await self._answered([f"quit -t {_QUIT_SECONDS}"], seconds)

    async def _answered(self, lines: list[str], seconds: float) -> str:
        """The output, which is not empty."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + seconds
        pause = _FIRST_PAUSE_SECONDS
        while not (text := await self._send(lines, max(deadline - clock(), pause))):
            if clock() + pause > deadline:
                raise MpsBusy(
                    f"another program keeps the MPS control daemon at {self._pipe} from answering "
                    f"{lines[0]!r}: find it with `ss -xp` and end it"
                )
            # Programs that probe in the same rhythm must not meet again.
            await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return text

    async def _send(self, lines: list[str], seconds: float) -> str:
        """The output; nothing if the daemon dropped the connection."""
        if self._hanging is not None and self._hanging.still_runs:
            # Each further one would cost a process.
            raise MpsTimeout(
                f"an earlier command to the MPS control daemon at {self._pipe} hangs: check the "
                "driver"
            )
        try:
            finished = await run_driver_program(
                [PROGRAM],
                seconds,
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self._pipe},
                input_text="".join(f"{line}\n" for line in lines),
            )
        except ProgramMissing as error:
            raise DriverProgramMissing(PROGRAM) from error
        except ProgramNotExecuted as error:
            raise CannotProbe(str(error)) from error
        except ProgramTimeout as error:
            self._hanging = error
            raise MpsTimeout(
                f"the MPS control daemon at {self._pipe} did not answer {lines[0]!r} "
                f"within {seconds:.3g} s"
            ) from None
        return self._output(finished)

    def _output(self, finished: Finished) -> str:
        if finished.code < 0 or finished.code in _NOT_EXECUTED:
            raise CannotProbe(
                f"{PROGRAM} failed before it reached the daemon at {self._pipe} "
                f"({finished.reason}): check the driver's files and the node's memory"
            )
        if finished.code in (0, 1) and finished.text in ("", DROPPED):
            return ""
        if finished.code != 0:
            raise MpsUnavailable(
                f"no MPS control daemon answers at {self._pipe} ({finished.reason}): "
                f"{_remedy(self._pipe)}"
            )
        return finished.text


def parse_percent(text: str) -> float | None:
    """A percentage as the daemon prints it; None: it is something else."""
    try:
        percent = float(text)
    except ValueError:
        return None
    return percent if 0.0 < percent <= 100.0 else None


def _remedy(pipe_directory: str) -> str:
    name = daemon_of(pipe_directory)
    if name is None:
        return f"start it with CUDA_MPS_PIPE_DIRECTORY={pipe_directory} {PROGRAM} -d"
    return (
        "run mps-control-daemon on this node with the same configuration (for gpuslice agent: "
        f"gpuslice mps); the daemon for {name} listens at <mps-root>/{name}/pipe on the host"
    )
