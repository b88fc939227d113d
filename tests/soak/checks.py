"""What must be true during the trouble, and after it."""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from gpuslice_sim.kubelet import Allocation
from gpuslice_sim.process import BackgroundProcess
from tests.node.rig import RESOURCE

from .node import CAPACITY, GPU_MIB, MEMORY_UNITS, SHARED, SoakNode
from .violation import Violation

SETTLE_SECONDS = 90.0
RESET_AGAIN_SECONDS = 30.0
# A busy gRPC keeps some threads, and allocators keep some memory. A leak has no such limit.
MORE_THREADS, MORE_DESCRIPTORS, MORE_MIB = 12, 6, 32


def check_grant(allocation: Allocation) -> int:
    """A container gets what it requested, from one GPU, and is limited to it. Returns its MiB."""
    separator = "-_-" if allocation.resource == RESOURCE else "::"
    gpus = {one.partition(separator)[0] for one in allocation.ids}
    env = dict(allocation.response.envs)
    if len(gpus) != 1:
        raise Violation(f"{allocation.ids} lie on {len(gpus)} GPUs")
    [uuid] = gpus
    if env.get("NVIDIA_VISIBLE_DEVICES") != uuid:
        raise Violation(f"{allocation.ids} became {env.get('NVIDIA_VISIBLE_DEVICES')}")
    count = len(allocation.ids)
    share = 1024 if allocation.resource == RESOURCE else GPU_MIB // CAPACITY[SHARED]
    if env.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT") != f"{uuid}={count * share}M":
        raise Violation(f"{count} of {allocation.resource} are limited by {env}")
    whole = MEMORY_UNITS if allocation.resource == RESOURCE else CAPACITY[SHARED]
    if env.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE") != str(max(1, 100 * count // whole)):
        raise Violation(f"{count} of {allocation.resource} have the wrong threads: {env}")
    return count * share


def check_nothing_twice(node: SoakNode) -> None:
    held = Counter(one for found in node.rig.kubelet.allocations() for one in found.ids)
    twice = [one for one, times in held.items() if times > 1]
    if twice:
        raise Violation(f"allocated twice: {twice}")


def wait_until_whole(node: SoakNode) -> None:
    """Every device of every healthy GPU is advertised again."""
    kubelet = node.rig.kubelet

    # An event that the agent read after the reset is a new fault: an operator resets again.
    next_reset: float | None = time.monotonic() + RESET_AGAIN_SECONDS

    def whole() -> bool:
        node.restart_dead()
        nonlocal next_reset
        if next_reset is not None and time.monotonic() > next_reset:
            next_reset = None
            node.agent.send(signal.SIGHUP)
        return {name: kubelet.allocatable(name) for name in CAPACITY} == CAPACITY

    _eventually(whole, lambda: f"not everything is advertised: {_advertised(node)}")


@dataclass(frozen=True, slots=True)
class Usage:
    threads: int
    descriptors: int
    rss_mib: int

    @classmethod
    def of(cls, process: BackgroundProcess) -> Usage:
        return cls(process.threads(), len(process.descriptors()), process.rss_bytes() >> 20)


def check_no_growth(before: Usage, process: BackgroundProcess, what: str) -> Usage:
    """A leak stays; what is just being closed does not."""

    def back() -> bool:
        now = Usage.of(process)
        return (
            now.threads <= before.threads + MORE_THREADS
            and now.descriptors <= before.descriptors + MORE_DESCRIPTORS
            and now.rss_mib <= before.rss_mib + MORE_MIB
        )

    _eventually(back, lambda: f"{what} grew from {before} to {Usage.of(process)}")
    return Usage.of(process)


def _advertised(node: SoakNode) -> dict[str, tuple[int, int]]:
    kubelet = node.rig.kubelet
    return {name: (kubelet.allocatable(name), kubelet.capacity(name)) for name in CAPACITY}


def _eventually(condition: Callable[[], bool], explain: Callable[[], str]) -> None:
    deadline = time.monotonic() + SETTLE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise Violation(f"{explain()} {SETTLE_SECONDS:g} s after the trouble ended")
        time.sleep(0.1)
