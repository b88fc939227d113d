"""CUDA programs in containers: none gets more than its grant, and none waits for ever."""

from __future__ import annotations

import json
import random
import select
import subprocess
import time
from collections import Counter
from dataclasses import dataclass
from typing import Any

from gpuslice_sim.kubelet import Allocation
from gpuslice_sim.node import SimNode

from .violation import Violation

MIB = 1 << 20
# From its start to its report, and from its end to its exit. A busy machine is slow.
LONGEST_SECONDS = 60.0
_PIPE = "CUDA_MPS_PIPE_DIRECTORY"


@dataclass
class _Program:
    process: subprocess.Popen[bytes]
    granted_mib: int
    since: float
    line: bytes = b""


class CudaPrograms:
    def __init__(self, node: SimNode, rng: random.Random, happened: Counter[str]) -> None:
        self._simcuda = node.bin / "simcuda"
        self._rng = rng
        self._happened = happened
        self._by_pod: dict[str, _Program] = {}

    def start(self, pod: str, allocation: Allocation, granted_mib: int) -> None:
        """It tries to get up to twice its grant, at once or in steps, and keeps it."""
        answer = allocation.response
        hosts = {mount.container_path: mount.host_path for mount in answer.mounts}
        # On the host, its pipe directory has another path.
        env = {**answer.envs, _PIPE: hosts[answer.envs[_PIPE]]}
        wanted = self._rng.randint(1, 2 * granted_mib)
        words = self._rng.choice([["fill"], ["hold", f"--alloc={wanted}MiB"]])
        process = subprocess.Popen([self._simcuda, *words], env=env, stdout=subprocess.PIPE)
        assert process.stdout is not None
        self._by_pod[pod] = _Program(process, granted_mib, time.monotonic())

    def check(self) -> None:
        """Raises Violation."""
        for program in self._by_pod.values():
            self._read(program)
            if not program.line and time.monotonic() - program.since > LONGEST_SECONDS:
                raise Violation(f"{program.process.args!r} waits for ever")

    def stop(self, pod: str) -> None:
        program = self._by_pod.pop(pod, None)
        if program is None:
            return
        program.process.terminate()
        try:
            output, _ = program.process.communicate(timeout=LONGEST_SECONDS)
        except subprocess.TimeoutExpired:
            raise Violation(f"{program.process.args!r} does not end") from None
        self._judge(program, output)

    def _read(self, program: _Program) -> None:
        stdout = program.process.stdout
        assert stdout is not None
        if program.line or not select.select([stdout], [], [], 0)[0]:
            return
        program.line = stdout.readline()
        self._judge(program, program.line)

    def _judge(self, program: _Program, output: bytes) -> None:
        for line in output.splitlines():
            report: dict[str, Any] = json.loads(line)
            self._happened[f"CUDA programs: {report['error'] or 'success'}"] += 1
            if not report.get("mps"):
                # Its daemon did not run: the first such program of a GPU is not limited.
                self._happened["CUDA programs without MPS"] += 1
            elif report.get("total_bytes", 0) > program.granted_mib * MIB:
                raise Violation(f"{program.granted_mib} MiB were granted, and {report} holds more")
