"""Measures the time until a new pod runs, on the cluster of tests/cluster.

    python bench/pods.py [--pods N] [--update docs/benchmarks.md]

It is the time from the creation of a pod until its container prints something. The nodes of the
cluster differ only in their device plugin. The pods of all cases alternate, so that load of the
machine affects all of them.
"""

from __future__ import annotations

import argparse
import datetime
import random
import re
import statistics
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cluster.harness import MPS_PIPE, RESOURCE, TEST_IMAGE, Cluster, Node, NodeSpec
from tests.peers.build import build_peers

from gpuslice.codes import Code

MARK = "<!-- bench/pods.py -->"
END = "<!-- end of bench/pods.py -->"
GPU = "nvidia.com/gpu"
PROFILE = "t4x2"
AGENT = ("agent", "--mps-pipe", MPS_PIPE)


@dataclass(frozen=True, slots=True)
class Case:
    node: str
    # None: no GPU.
    resource: str | None
    runtime: str = "nvidia"


ENV, CDI, NVIDIA = "gpuslice, --bind env", "gpuslice, --bind cdi", "NVIDIA 0.19.0"
CASES = {
    "runc, no GPU": Case("node-env", None, ""),
    "NVIDIA's runtime, no GPU": Case("node-env", None),
    NVIDIA: Case("node-nvidia", GPU),
    ENV: Case("node-env", RESOURCE),
    CDI: Case("node-cdi", RESOURCE),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=30, help="pods of each kind [30]")
    parser.add_argument("--update", type=Path, help=f"write the table to FILE, after {MARK}")
    args = parser.parse_args()
    nodes = [
        NodeSpec("node-env", PROFILE, agent=(*AGENT, "--bind=env")),
        NodeSpec("node-cdi", PROFILE, agent=(*AGENT, "--bind=env")),  # until there is a directory
        NodeSpec("node-nvidia", PROFILE, agent=(), mps=False),
    ]
    order = random.Random(1)
    with Cluster(nodes) as cluster:
        prepare(cluster)
        seconds: dict[str, list[float]] = {name: [] for name in CASES}
        for number in range(-1, args.pods):
            for name in order.sample(list(CASES), len(CASES)):
                elapsed = start_one(cluster, f"pod-{list(CASES).index(name)}", CASES[name])
                if number >= 0:  # the first of each kind fills caches of the runtime
                    seconds[name].append(elapsed)
            cluster.delete_pods()
        binds = bind_seconds(cluster.node("node-cdi"))
        report = table(seconds, binds, cluster.timings)
    print(report)
    if args.update:
        head, _, rest = args.update.read_text().partition(MARK)
        tail = rest.partition(END)[2]
        args.update.write_text(f"{head}{MARK}\n\n{report}\n{END}{tail}")


def prepare(cluster: Cluster) -> None:
    """Starts NVIDIA's plugin, and the agent with a directory for CDI specifications."""
    node = cluster.node("node-nvidia")
    node.agent.argv = [str(build_peers(["nvidia-device-plugin"]).device_plugin)]
    node.agent.start()
    bound = cluster.node("node-cdi")
    (bound.directory / "run" / "cdi").mkdir(exist_ok=True)
    bound.containerd.restart()  # it watches directories that exist when it starts
    cluster.wait_for_node("node-cdi")
    bound.restart_agent(*AGENT, "--bind=cdi")
    cluster.wait_for_amount("node-nvidia", 2, resource=GPU)
    cluster.wait_for_amount("node-cdi")


def start_one(cluster: Cluster, name: str, case: Case) -> float:
    container: dict[str, Any] = {
        "name": "main",
        "image": TEST_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", "echo started; exec sleep 1000"],
        "resources": {"limits": {case.resource: "1"}} if case.resource else {},
    }
    spec: dict[str, Any] = {
        "containers": [container],
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "nodeSelector": {"kubernetes.io/hostname": case.node},
    }
    if case.runtime:
        spec["runtimeClassName"] = case.runtime
    began = time.time()
    made = cluster.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    )
    cluster.wait_for_pod(name)
    return first_output(cluster.node(case.node), made["metadata"]["uid"]) - began


def first_output(node: Node, uid: str) -> float:
    """When the container wrote its first line, by the clock of the container runtime."""
    [place] = [one for one in (node.directory / "pods").iterdir() if one.name.endswith(uid)]
    log = place / "main" / "0.log"
    while not (text := log.read_text() if log.exists() else ""):
        time.sleep(0.01)
    return datetime.datetime.fromisoformat(text.partition(" ")[0]).timestamp()


def bind_seconds(node: Node) -> list[float]:
    """How long the agent took to bind each container, by its own log."""
    found = re.findall(rf"{Code.LIMITS_BOUND}: .* took=(\d+)ms", node.agent.log.read_text())
    return [int(milliseconds) / 1e3 for milliseconds in found]


def table(
    seconds: Mapping[str, list[float]], binds: list[float], timings: Mapping[str, float]
) -> str:
    lines = ["| | p50 | p95 |", "|---|---:|---:|"]
    lines += [row(case, samples) for case, samples in seconds.items()]
    for name, case, base in (
        ("`--bind cdi`, more than `--bind env` in the same round", CDI, ENV),
        ("`--bind cdi`, more than NVIDIA's plugin in the same round", CDI, NVIDIA),
        ("`--bind env`, more than NVIDIA's plugin in the same round", ENV, NVIDIA),
    ):
        pairs = zip(seconds[case], seconds[base], strict=True)
        lines.append(row(name, [ours - theirs for ours, theirs in pairs]))
    lines.append(
        row("in the agent with `--bind cdi`: find the container, write its specification", binds)
    )
    ratio = p50(seconds[CDI]) / p50(seconds[ENV])
    lines.append(f"| `--bind cdi` : `--bind env` | {ratio:.2f} | |")
    for event, after in timings.items():
        lines.append(f"| boot from warm: {event} | {after:.1f} s | |")
    return "\n".join(lines) + "\n"


def row(name: str, samples: list[float]) -> str:
    return f"| {name} | {p50(samples):.0f} ms | {p95(samples):.0f} ms |"


def p50(samples: list[float]) -> float:
    return 1e3 * statistics.median(samples)


def p95(samples: list[float]) -> float:
    return 1e3 * sorted(samples)[min(len(samples) - 1, len(samples) * 95 // 100)]


if __name__ == "__main__":
    main()
