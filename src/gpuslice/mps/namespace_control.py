"""Sends commands of protocol 3 to an MPS control daemon through NVIDIA's control program.

What a command did is read back: documents of NVIDIA do not state when it exits with 0.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from gpuslice.mps.control import (
    DROPPED,
    PROGRAM,
    CannotProbe,
    DriverProgramMissing,
    MpsTimeout,
    MpsUnavailable,
    parse_percent,
)
from gpuslice.mps.daemon_paths import CONTROL
from gpuslice.mps.driver_program_run import (
    Finished,
    ProgramMissing,
    ProgramNotExecuted,
    ProgramTimeout,
    run_driver_program,
    shortened,
)
from gpuslice.mps.namespaces import (
    DEFAULT,
    LIST_CLIENTS,
    LIST_NAMESPACES,
    LIST_SERVERS,
    READY,
    SERVER,
    Listed,
    UnexpectedTable,
    create_namespace,
    create_server,
    delete_namespace,
    listed_clients,
    listed_namespaces,
    set_namespace,
    status_of_server,
    terminate_client,
)
from gpuslice.slicing.limits import Limits

# Between two attempts.
_PAUSE_SECONDS = 0.05

_Result = TypeVar("_Result")


class NamespaceControl:
    """Sends commands to the daemon of one pipe directory."""

    def __init__(self, pipe_directory: str, timeout_seconds: float) -> None:
        self._pipe = pipe_directory
        self._timeout_seconds = timeout_seconds
        # A command that was killed and has not ended.
        self._hanging: ProgramTimeout | None = None

    async def ping(self) -> None:
        """Whether the daemon answers and its server is ready. Raises MpsUnavailable.

        A server that could not open its GPU is listed as created and exits. Its clients would run
        without MPS.
        """
        status = self._parsed(status_of_server, await self._table(LIST_SERVERS))
        if status != READY:
            raise MpsUnavailable(
                f"the server of the MPS control daemon at {self._pipe} is "
                f"{status or 'missing'} instead of {READY}: check server.log of the daemon"
            )
        if not (Path(self._pipe) / SERVER / CONTROL).is_socket():
            raise MpsUnavailable(
                f"the MPS control daemon at {self._pipe} has no socket {SERVER}/{CONTROL}, so CUDA "
                "programs cannot reach it: restart it"
            )

    async def default_threads_percent(self) -> float:
        """The share of threads of clients that are in no container's namespace."""
        await self.ping()
        listed = (await self.namespaces()).get(DEFAULT)
        percent = None if listed is None else parse_percent(listed.threads.rstrip("% "))
        if percent is None:
            raise MpsUnavailable(
                f"the MPS control daemon at {self._pipe} does not limit its default namespace"
            )
        return percent

    async def clients(self) -> int:
        """How many processes use the server of the daemon."""
        return len(await self.client_pids())

    async def client_pids(self) -> frozenset[int]:
        return self._parsed(listed_clients, await self._table(LIST_CLIENTS))

    async def namespaces(self) -> dict[str, Listed]:
        """With their limits, by name."""
        return self._parsed(listed_namespaces, await self._table(LIST_NAMESPACES))

    async def start_server(self, gpu: str, limits: Limits) -> None:
        """`limits` are those of its default namespace. Returns when it is ready."""
        refused = await self._run(create_server(gpu, limits))
        deadline = self._deadline()
        while True:
            try:
                await self.ping()
                break
            except (CannotProbe, MpsTimeout):
                raise
            except MpsUnavailable as error:
                if asyncio.get_running_loop().time() > deadline:
                    raise MpsUnavailable(_because(str(error), refused)) from error
            await asyncio.sleep(_PAUSE_SECONDS)
        await self.put(DEFAULT, limits)

    async def put(self, name: str, limits: Limits) -> bool:
        """Returns whether anything changed. Raises MpsUnavailable if it has other limits then."""
        found = (await self.namespaces()).get(name)
        if found is not None and found.holds(limits):
            return False
        words = create_namespace if found is None else set_namespace
        deadline = self._deadline()
        while True:
            finished = await self._run(words(name, limits))
            found = (await self.namespaces()).get(name)
            if found is not None and found.holds(limits):
                return True
            # A daemon that serves another control program may drop a command.
            if finished.text or asyncio.get_running_loop().time() > deadline:
                what = "does not exist" if found is None else f"has {found}"
                raise MpsUnavailable(
                    _because(
                        f"namespace {name} of the MPS control daemon at {self._pipe} {what} after "
                        f"`{' '.join(words(name, limits))}`",
                        finished,
                    )
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    async def delete(self, name: str) -> None:
        await self._run(delete_namespace(name))

    async def terminate(self, pid: int) -> str:
        """MPS ends the contexts of a client. Returns what is wrong; empty if it is gone."""
        finished = await self._run(terminate_client(pid))
        return "" if finished.code == 0 else finished.reason

    async def quit(self, seconds: float) -> None:
        """Does nothing if no daemon answers."""
        try:
            await self._run(("-q",), seconds)
        except MpsUnavailable:
            return

    def _deadline(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout_seconds

    async def _table(self, words: tuple[str, ...]) -> str:
        """A table has a header, so no answer is empty: the daemon may have dropped the command."""
        deadline = self._deadline()
        while True:
            finished = await self._run(words)
            if finished.code == 0 and finished.text:
                return finished.text
            if finished.text or asyncio.get_running_loop().time() > deadline:
                raise MpsUnavailable(
                    f"no MPS control daemon with namespaces answers `{' '.join(words)}` at "
                    f"{self._pipe} ({finished.reason})"
                )
            await asyncio.sleep(_PAUSE_SECONDS)

    def _parsed(self, parse: Callable[[str], _Result], text: str) -> _Result:
        try:
            return parse(text)
        except UnexpectedTable as error:
            raise MpsUnavailable(
                f"the answer of the MPS control daemon at {self._pipe} is not as documented: "
                f"{shortened(str(error))}"
            ) from error

    async def _run(self, words: tuple[str, ...], seconds: float | None = None) -> Finished:
        if self._hanging is not None and self._hanging.still_runs:
            # Each further one would cost a process.
            raise MpsTimeout(
                f"an earlier command to the MPS control daemon at {self._pipe} hangs: check the "
                "driver"
            )
        seconds = self._timeout_seconds if seconds is None else seconds
        try:
            finished = await run_driver_program(
                [PROGRAM, *words],
                seconds,
                env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": self._pipe},
            )
        except ProgramMissing as error:
            raise DriverProgramMissing(PROGRAM) from error
        except ProgramNotExecuted as error:
            raise CannotProbe(str(error)) from error
        except ProgramTimeout as error:
            self._hanging = error
            raise MpsTimeout(
                f"the MPS control daemon at {self._pipe} did not answer `{' '.join(words)}` "
                f"within {seconds:.3g} s"
            ) from None
        # So a daemon of protocol 2 drops the commands of all programs but one.
        return replace(finished, text="") if finished.text == DROPPED else finished


def _because(text: str, finished: Finished) -> str:
    return f"{text} ({shortened(finished.text)!r})" if finished.text else text
