"""The trouble itself: seeded choices, pods that come and go, and checks all the time."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections import Counter
from pathlib import Path

import grpc

from gpuslice_sim.kubelet import AdmissionError, Container, Pod, StartError
from tests.unit.config.hostile import HOSTILE

from .checks import (
    Usage,
    check_grant,
    check_no_growth,
    check_nothing_twice,
    wait_until_whole,
)
from .cuda_programs import CudaPrograms
from .node import CAPACITY, GOOD, MEMORY_UNITS, SHARED, SoakNode, soak_node
from .troubles import TROUBLES, End, Trouble, kill_agent
from .violation import Violation

STEP_SECONDS = 0.05
# Chances per step.
NEW_TROUBLE, NEW_POD, OLD_POD = 0.12, 0.5, 0.3
LONGEST_TROUBLE_SECONDS = 4.0
# Until the agent has read the events of the last trouble.
EVENTS_SECONDS = 3.0


class Soak:
    def __init__(self, node: SoakNode, rng: random.Random) -> None:
        self._node = node
        self._rng = rng
        self._pods: list[Pod] = []
        self._ends: list[tuple[float, End]] = []
        self.happened: Counter[str] = Counter()
        self._programs = CudaPrograms(node.rig.node, rng, self.happened)
        self._pod_number = 0

    def trouble_for(self, seconds: float, troubles: tuple[Trouble, ...]) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._end_troubles(now=time.monotonic())
            if self._rng.random() < NEW_TROUBLE:
                self._begin(self._rng.choice(troubles))
            if self._rng.random() < NEW_POD:
                self._admit()
            if self._pods and self._rng.random() < OLD_POD:
                self._remove(self._rng.randrange(len(self._pods)))
            self._node.restart_dead()
            check_nothing_twice(self._node)
            self._programs.check()
            time.sleep(STEP_SECONDS)

    def read_every_configuration(self) -> None:
        """So that the largest one has been read before memory is measured."""
        for text in HOSTILE.values():
            self._node.write_config(text)
            self._node.agent.send(signal.SIGHUP)
            time.sleep(STEP_SECONDS)

    def settle(self) -> None:
        """Everything is repaired, as an operator would; then all devices must come back."""
        self._end_troubles(now=float("inf"))
        while self._pods:
            self._remove(0)
        self._node.write_config(GOOD)
        agent = self._node.agent
        self._node.restart_dead()
        # The agent still reads events of GPUs that were reset, and would report them as new.
        time.sleep(EVENTS_SECONDS)
        if self._node.agent is agent:  # a new one knows no old faults, and may not handle it yet
            agent.send(signal.SIGHUP)
        wait_until_whole(self._node)

    def _begin(self, trouble: Trouble) -> None:
        self.happened[trouble.__name__] += 1
        end = trouble(self._node, self._rng)
        lasts = self._rng.uniform(0.1, LONGEST_TROUBLE_SECONDS)
        self._ends.append((time.monotonic() + lasts, end))

    def _end_troubles(self, now: float) -> None:
        due = [end for when, end in self._ends if when <= now]
        self._ends = [(when, end) for when, end in self._ends if when > now]
        # The last one first, so that what was there before comes back.
        for end in reversed(due):
            end()

    def _admit(self) -> None:
        resource = self._rng.choice(list(CAPACITY))
        largest = 1 if resource == SHARED else MEMORY_UNITS
        units = self._rng.randint(1, max(1, int(largest * self._rng.random())))
        self._pod_number += 1
        pod = Pod(f"pod-{self._pod_number}", [Container("main", {resource: units})])
        try:
            [allocation] = self._node.rig.kubelet.admit(pod)
            granted_mib = check_grant(allocation)
        except AdmissionError:
            self.happened["pods rejected"] += 1
            return
        self.happened["pods admitted"] += 1
        self._pods.append(pod)
        with contextlib.suppress(StartError, grpc.RpcError):
            self._node.rig.kubelet.start_container(pod, "main")
            self.happened["containers started"] += 1
            self._programs.start(pod.name, allocation, granted_mib)

    def _remove(self, position: int) -> None:
        pod = self._pods.pop(position)
        self._programs.stop(pod.name)
        self._node.rig.kubelet.remove(pod)


def soak(directory: Path, seconds: float, seed: int) -> str:
    """Raises Violation. Returns a report."""
    with soak_node(directory) as node:
        run = Soak(node, random.Random(seed))
        wait_until_whole(node)
        # In the first half, programs are killed; in the second half, the same agent must last.
        run.trouble_for(seconds / 2, (*TROUBLES, kill_agent, kill_agent))
        run.settle()
        run.trouble_for(seconds / 10, TROUBLES)
        run.read_every_configuration()
        run.settle()
        agent, before = node.agent, Usage.of(node.agent)
        run.trouble_for(seconds * 4 / 10, TROUBLES)
        run.settle()
        if node.agent is not agent:
            raise Violation("the agent ended although nobody killed it")
        after = check_no_growth(before, agent, "the agent")
        if "Traceback" in agent.output():
            raise Violation("the agent logged a traceback")
    lines = [f"{name}: {count}" for name, count in sorted(run.happened.items())]
    lines += [f"restarts of programs: {node.restarts}", f"agent before: {before}, after: {after}"]
    return "\n".join(lines)
