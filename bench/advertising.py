"""Simulates which free memory units a node advertises, for a stream of pods.

    python bench/advertising.py [--trace FILE] [--update docs/benchmarks.md]

The scheduler places a pod on a random node where allocatable minus requested is large enough. The
kubelet rejects the pod if its units would not lie on one GPU; its controller creates a new one at
once. Every policy gets the same pods: sizes from the trace (a CSV file with the columns num_gpu and
gpu_milli), arrivals at random times.
"""

from __future__ import annotations

import argparse
import csv
import heapq
import itertools
import random
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.slicing.free_shares import part_to_advertise

MARK = "<!-- bench/advertising.py -->"
END = "<!-- end of bench/advertising.py -->"

NODES, GPUS, UNITS = 8, 4, 80
SECONDS, WARM_UP = 6000.0, 1200.0
POD_SECONDS = 600.0
POLL_SECONDS = 2.0
# The controller creates a new pod for a failed one.
RECREATE_SECONDS = 0.1
RELATED_SECONDS = 30.0
# The largest request within this time decides which GPU "fits".
MEMORY_SECONDS = 600.0
# Without a trace: thousandths of a GPU, and how often.
USUAL_SIZES = {100: 4, 250: 3, 500: 3, 750: 1, 1000: 2}

# Free units by GPU, the largest recent request -> the GPU to advertise; None: all.
Policy = Callable[[Sequence[int], int], int | None]


@dataclass(frozen=True, slots=True)
class Pod:
    created: float
    units: int
    seconds: float


@dataclass
class Node:
    policy: Policy
    free: list[int] = field(default_factory=lambda: [UNITS] * GPUS)
    # As the agent knows it: units of pods that ended are missing until it polls.
    known: list[int] = field(default_factory=lambda: [UNITS] * GPUS)
    # As the scheduler knows it.
    allocatable: int = 0
    requested: int = 0
    recent: deque[tuple[float, int]] = field(default_factory=deque)
    # The kubelet waits for a rejection, which is delayed.
    busy_until: float = -RELATED_SECONDS
    delay: float = 0.0

    def visible(self, now: float) -> list[int]:
        """The free units of each GPU that the kubelet can allocate."""
        while self.recent and self.recent[0][0] < now - MEMORY_SECONDS:
            self.recent.popleft()
        largest = max((units for _, units in self.recent), default=UNITS)
        chosen = self.policy(self.known, largest)
        if chosen is None:
            return list(self.free)
        return [
            (known if gpu == chosen else 0) + free - known
            for gpu, (free, known) in enumerate(zip(self.free, self.known, strict=True))
        ]

    def publish(self, now: float) -> None:
        used = sum(UNITS - free for free in self.free)
        self.allocatable = used + sum(self.visible(now))


@dataclass
class Outcome:
    failed: int = 0
    waits: list[float] = field(default_factory=list)
    # Of pods that need more than half a GPU.
    large_waits: list[float] = field(default_factory=list)
    used: float = 0.0
    holes: list[int] = field(default_factory=list)


def emptiest(free: Sequence[int], largest: int) -> int | None:
    del largest
    return part_to_advertise(free, [True] * len(free))


def fullest_that_fits(free: Sequence[int], largest: int) -> int | None:
    fitting = [gpu for gpu in range(len(free)) if free[gpu] >= largest]
    return min(fitting, key=lambda gpu: free[gpu]) if fitting else emptiest(free, largest)


def every_gpu(free: Sequence[int], largest: int) -> int | None:
    del free, largest
    return None


@dataclass(frozen=True, slots=True)
class Case:
    policy: Policy
    # Before Allocate is rejected again, as in the agent.
    delay_seconds: float = 1.0
    # `nodeStatusUpdateFrequency` of the kubelet.
    status_seconds: float = 10.0


CASES = {
    "all, rejections not delayed": Case(every_gpu, delay_seconds=0.0),
    "all": Case(every_gpu),
    "one-gpu: the emptiest (default)": Case(emptiest),
    "one-gpu: the fullest that fits": Case(fullest_that_fits),
    "one-gpu: the emptiest, node status every second": Case(emptiest, status_seconds=1.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--trace", type=Path, help="sizes of pods [a usual mix]")
    parser.add_argument("--seeds", type=int, default=5, help="runs of each case [5]")
    parser.add_argument("--update", type=Path, help=f"write the tables to FILE, after {MARK}")
    args = parser.parse_args()
    sizes = read_sizes(args.trace) if args.trace else usual_sizes()
    report = "\n".join(table(load, sizes, args.seeds) for load in (0.6, 0.8))
    print(report)
    if args.update:
        head, _, rest = args.update.read_text().partition(MARK)
        tail = rest.partition(END)[2]
        args.update.write_text(f"{head}{MARK}\n\n{report}\n{END}{tail}")


def read_sizes(trace: Path) -> list[int]:
    with trace.open(newline="") as file:
        shares = [row for row in csv.DictReader(file) if row["num_gpu"] == "1"]
    return [_units(int(row["gpu_milli"])) for row in shares if int(row["gpu_milli"]) > 0]


def usual_sizes() -> list[int]:
    return [_units(milli) for milli, count in USUAL_SIZES.items() for _ in range(count)]


def workload(sizes: Sequence[int], load: float, seed: int) -> list[Pod]:
    """Pods that would use this share of all units if they never waited."""
    rng = random.Random(seed)
    rate = load * NODES * GPUS * UNITS / (statistics.mean(sizes) * POD_SECONDS)
    pods, now = [], 0.0
    while (now := now + rng.expovariate(rate)) < SECONDS:
        pods.append(Pod(now, rng.choice(sizes), rng.expovariate(1 / POD_SECONDS)))
    return pods


class Simulation:
    def __init__(self, case: Case, pods: Sequence[Pod], seed: int) -> None:
        self._case = case
        self._nodes = [Node(case.policy) for _ in range(NODES)]
        self._rng = random.Random(seed)
        self._order = itertools.count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._pending: list[Pod] = []
        self._outcome = Outcome()
        for pod in pods:
            self._create(pod, pod.created)
        for node in self._nodes:
            node.publish(0.0)
            self._status_at(self._rng.uniform(0, case.status_seconds), node)
            self._poll_at(self._rng.uniform(0, POLL_SECONDS), node)

    def run(self) -> Outcome:
        last = 0.0
        while self._events:
            now, _, event = heapq.heappop(self._events)
            if now > SECONDS:
                break
            used = sum(UNITS - free for node in self._nodes for free in node.free)
            self._outcome.used += used * max(0.0, now - max(last, WARM_UP))
            last = now
            event(now)
            self._pending = [pod for pod in self._pending if not self._schedule(pod, now)]
        return self._outcome

    def _at(self, when: float, event: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (when, next(self._order), event))

    def _create(self, pod: Pod, when: float) -> None:
        self._at(when, lambda _: self._pending.append(pod))

    def _status_at(self, when: float, node: Node) -> None:
        def publish(now: float) -> None:
            node.publish(now)
            if now > WARM_UP:
                self._outcome.holes.append(max(node.free))
            self._status_at(now + self._case.status_seconds, node)

        self._at(when, publish)

    def _poll_at(self, when: float, node: Node) -> None:
        def poll(now: float) -> None:
            node.known = list(node.free)
            self._poll_at(now + POLL_SECONDS, node)

        self._at(when, poll)

    def _schedule(self, pod: Pod, now: float) -> bool:
        """Returns whether the pod is not pending any more."""
        fitting = [
            node
            for node in self._nodes
            if node.allocatable - node.requested >= pod.units and node.busy_until <= now
        ]
        if not fitting:
            return False
        node = self._rng.choice(fitting)
        visible = node.visible(now)
        gpus = [gpu for gpu in range(GPUS) if visible[gpu] >= pod.units]
        # The kubelet tells the agent which devices are free before it allocates.
        node.known = list(node.free)
        if gpus:
            self._start(pod, node, min(gpus, key=lambda gpu: visible[gpu]), now)
        else:
            # With too few devices in all, the kubelet rejects the pod and does not call the agent.
            self._reject(pod, node, now, by_agent=sum(visible) >= pod.units)
        return True

    def _start(self, pod: Pod, node: Node, gpu: int, now: float) -> None:
        node.free[gpu] -= pod.units
        node.known[gpu] -= pod.units
        node.requested += pod.units
        node.recent.append((now, pod.units))
        if now > WARM_UP:
            self._outcome.waits.append(now - pod.created)
            if pod.units > UNITS // 2:
                self._outcome.large_waits.append(now - pod.created)
        self._at(now + pod.seconds, lambda _: self._end(pod, node, gpu))

    def _end(self, pod: Pod, node: Node, gpu: int) -> None:
        node.free[gpu] += pod.units
        node.requested -= pod.units

    def _reject(self, pod: Pod, node: Node, now: float, *, by_agent: bool) -> None:
        self._outcome.failed += 1
        if by_agent:
            related = now - node.busy_until < RELATED_SECONDS
            first = self._case.delay_seconds
            node.delay = min(max(2 * node.delay, first), 4 * first) if related else 0.0
            node.busy_until = now + node.delay
        self._create(pod, max(now, node.busy_until) + RECREATE_SECONDS)


def table(load: float, sizes: Sequence[int], seeds: int) -> str:
    lines = [
        f"### {load:.0%} load",
        "",
        "| | pods | failed pods | mean wait | of large pods | units in use | largest free part |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for name, case in CASES.items():
        runs = [Simulation(case, workload(sizes, load, seed), seed).run() for seed in range(seeds)]
        lines.append(f"| {name} | {' | '.join(_figures(runs))} |")
    return "\n".join(lines) + "\n"


def _figures(runs: Sequence[Outcome]) -> list[str]:
    capacity = NODES * GPUS * UNITS * (SECONDS - WARM_UP)

    def mean(figure: Callable[[Outcome], float]) -> float:
        return statistics.mean(figure(run) for run in runs)

    return [
        f"{mean(lambda run: len(run.waits)):,.0f}",
        f"{mean(lambda run: run.failed):,.0f}",
        f"{mean(lambda run: statistics.mean(run.waits)):.1f} s",
        f"{mean(lambda run: statistics.mean(run.large_waits or [0.0])):.1f} s",
        f"{mean(lambda run: run.used / capacity):.1%}",
        f"{mean(lambda run: statistics.mean(run.holes) / UNITS):.1%}",
    ]


def _units(milli: int) -> int:
    return max(1, -(-milli * UNITS // 1000))


if __name__ == "__main__":
    main()
