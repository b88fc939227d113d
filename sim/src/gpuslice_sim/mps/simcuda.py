"""Runs `simcuda`, the CUDA program of a simulated node, for tests and demos."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from gpuslice_sim.process import PATIENCE_SECONDS, as_user

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import TracebackType


@dataclass(frozen=True)
class Outcome:
    """The result of a run. `report` is the JSON object that it printed."""

    status: int
    report: dict[str, Any]

    @property
    def error(self) -> str | None:
        error: str | None = self.report["error"]
        return error

    @property
    def device(self) -> dict[str, Any]:
        """The only device of the run."""
        [device] = self.report["devices"]
        return dict(device)


def run_client(
    program: Path, *arguments: str, env: Mapping[str, str], user: int | None = None
) -> Outcome:
    """Runs simcuda to its end, with exactly this environment."""
    done = subprocess.run(
        as_user(user, program, *arguments),
        env=dict(env),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_SECONDS,
    )
    if not done.stdout:
        raise ValueError(f"simcuda {' '.join(arguments)}: {done.stderr.strip()}")
    return Outcome(done.returncode, json.loads(done.stdout))


class HeldClient:
    """`simcuda hold`: keeps its contexts until `stop` or the end of the `with` block."""

    def __init__(
        self, program: Path, *arguments: str, env: Mapping[str, str], user: int | None = None
    ) -> None:
        self._process = subprocess.Popen(
            as_user(user, program, "hold", *arguments), env=dict(env), stdout=subprocess.PIPE
        )
        assert self._process.stdout is not None
        self._output = self._process.stdout.fileno()
        self._rest = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ready(self) -> dict[str, Any]:
        """The report after its contexts exist. Raises ValueError if it has none."""
        report = self.next_report()
        if report["error"]:
            raise ValueError(f"simcuda hold: {report['error']}: {report['message']}")
        return report

    def next_report(self, timeout: float = PATIENCE_SECONDS) -> dict[str, Any]:
        """The next line of the output. Raises TimeoutError if there is none."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._rest:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._output], [], [], left)[0]:
                raise TimeoutError(f"simcuda {self.pid} printed nothing")
            data = os.read(self._output, 65536)
            if not data:
                raise EOFError(f"simcuda {self.pid} exited without a report")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return dict(json.loads(line))

    def wait(self) -> int:
        return self._process.wait(PATIENCE_SECONDS)

    def stop(self) -> int:
        """Sends SIGTERM and returns the exit status."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        status = self.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        return status

    def kill(self) -> None:
        self._process.kill()
        self.wait()
