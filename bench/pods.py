"""Measures the time from the creation of a pod until it runs, on the cluster of tests/cluster.

    python bench/pods.py [--pods N] [--update docs/benchmarks.md]

Alternates between pods with and without a slice, with runc and with NVIDIA's runtime, so that one
run shows the cost of the plugin.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.cluster.harness import RESOURCE, TEST_IMAGE, Cluster, NodeSpec

MARK = "<!-- bench/pods.py -->"
END = "<!-- end of bench/pods.py -->"
CASES = {
    "runc, no slice": ("", 0),
    "runc, a slice of 1 GiB": ("", 1),
    "NVIDIA's runtime, no slice": ("nvidia", 0),
    "NVIDIA's runtime, a slice of 1 GiB": ("nvidia", 1),
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pods", type=int, default=15, help="pods of each kind [15]")
    parser.add_argument("--update", type=Path, help=f"write the table to FILE, after {MARK}")
    args = parser.parse_args()
    with Cluster([NodeSpec("node-a", "t4x2"), NodeSpec("node-b", "l40sx4")]) as cluster:
        seconds: dict[str, list[float]] = {case: [] for case in CASES}
        for number in range(args.pods):
            for case, (runtime, units) in CASES.items():
                seconds[case].append(start_one(cluster, f"pod-{number}", runtime, units))
        report = table(seconds, cluster)
    print(report)
    if args.update:
        head, _, rest = args.update.read_text().partition(MARK)
        tail = rest.partition(END)[2]
        args.update.write_text(f"{head}{MARK}\n\n{report}\n{END}{tail}")


def start_one(cluster: Cluster, name: str, runtime: str, units: int) -> float:
    container: dict[str, Any] = {
        "name": "main",
        "image": TEST_IMAGE,
        "imagePullPolicy": "Never",
        "command": ["sleep", "1000"],
        "resources": {"limits": {RESOURCE: str(units)}} if units else {},
    }
    spec: dict[str, Any] = {"containers": [container], "terminationGracePeriodSeconds": 0}
    if runtime:
        spec["runtimeClassName"] = runtime
    began = time.monotonic()
    cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})
    cluster.wait_for_pod(name)
    elapsed = time.monotonic() - began
    cluster.delete_pods(name)
    return elapsed


def table(seconds: dict[str, list[float]], cluster: Cluster) -> str:
    lines = ["| | median | slowest |", "|---|---:|---:|"]
    for case, samples in seconds.items():
        lines.append(f"| {case} | {statistics.median(samples):.2f} s | {max(samples):.2f} s |")
    for event, after in cluster.timings.items():
        lines.append(f"| boot from warm: {event} | {after:.1f} s | |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
