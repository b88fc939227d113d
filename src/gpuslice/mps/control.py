"""Sends commands to an MPS control daemon through NVIDIA's control program."""

from __future__ import annotations

import asyncio
import os
import random

from gpuslice.mps.daemon_paths import daemon_of
from gpuslice.mps.driver_program_run import (
    Finished,
    ProgramMissing,
    ProgramNotExecuted,
    ProgramTimeout,
    run_driver_program,
    shortened,
)

PROGRAM = "nvidia-cuda-mps-control"
_PING, _QUIT = "get_default_active_thread_percentage", "quit"
# What the program prints if another one has taken its connection.
_INTERRUPTED = "Cannot send command"
# With four control programs that run all the time, seven attempts were the most that one needed.
_ATTEMPTS = 10
# Seconds before the second attempt, at least and at most; later ones wait longer.
_PAUSE = 0.005, 0.03
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
        # A command that was killed and has not ended.
        self._hanging: ProgramTimeout | None = None

    async def ping(self) -> None:
        """A round trip: a crashed daemon leaves its socket behind, so a file proves nothing."""
        await self.default_threads_percent()

    async def default_threads_percent(self) -> float:
        """The share of threads that no client of the daemon exceeds.

        The program also exits with 0 if it rejects a command, and a container can replace the
        socket of the daemon, so only a valid answer proves that the daemon answers.
        """
        text = await self.command(_PING)
        percent = parse_percent(text)
        if percent is None:
            raise self._unexpected(_PING, text, "a percentage")
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

    async def command(self, line: str, timeout_seconds: float | None = None) -> str:
        """Runs one command and returns its output. Raises MpsUnavailable.

        A daemon answers one control program at a time: while two run, either may get no answer and
        exit with 0 all the same. Such a command is repeated, so it must be safe to run twice.
        """
        finished = await self._run(line, timeout_seconds)
        for attempt in range(1, _ATTEMPTS):
            if _is_complete(line, finished):
                break
            await asyncio.sleep(random.uniform(*_PAUSE) * attempt)  # noqa: S311
            finished = await self._run(line, timeout_seconds)
        return _without_ping(line, self._output(finished))

    async def _run(self, line: str, timeout_seconds: float | None) -> Finished:
        if self._hanging is not None and self._hanging.still_runs:
            # Each further one would cost a process.
            raise MpsTimeout(
                f"an earlier command to the MPS control daemon at {self._pipe} hangs: check the "
                "driver"
            )
        seconds = timeout_seconds or self._timeout_seconds
        try:
            return await run_driver_program(
                [PROGRAM],
                seconds,
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self._pipe},
                input_text="".join(f"{one}\n" for one in _session(line)),
            )
        except ProgramMissing as error:
            raise DriverProgramMissing(PROGRAM) from error
        except ProgramNotExecuted as error:
            raise CannotProbe(str(error)) from error
        except ProgramTimeout as error:
            self._hanging = error
            raise MpsTimeout(
                f"the MPS control daemon at {self._pipe} did not answer {line!r} "
                f"within {seconds:g} s"
            ) from None

    def _output(self, finished: Finished) -> str:
        if finished.code < 0 or finished.code in _NOT_EXECUTED:
            raise CannotProbe(
                f"{PROGRAM} failed before it reached the daemon at {self._pipe} "
                f"({finished.reason}): check the driver's files and the node's memory"
            )
        if finished.code != 0:
            raise MpsUnavailable(
                f"no MPS control daemon answers at {self._pipe} ({finished.reason}): "
                f"{_remedy(self._pipe)}"
            )
        return finished.text


def _session(line: str) -> tuple[str, ...]:
    """The lines that the program sends. The last answer proves that the daemon got to the end."""
    return (line,) if line == _PING or line.startswith(_QUIT) else (line, _PING)


def _is_complete(line: str, finished: Finished) -> bool:
    """Whether the program ended as it does while no other one runs."""
    if finished.code not in (0, 1):
        return True
    if finished.code == 0 and len(_session(line)) > 1:
        return parse_percent(finished.text.rpartition("\n")[2]) is not None
    is_answered = bool(finished.text) or line.startswith(_QUIT)
    return is_answered and _INTERRUPTED not in finished.text


def _without_ping(line: str, text: str) -> str:
    if len(_session(line)) == 1:
        return text
    head, _, last = text.rpartition("\n")
    return text if parse_percent(last) is None else head


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
