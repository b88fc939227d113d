"""`make cluster`: a cluster to play with, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
from types import FrameType

from tests.cluster.build import ClusterBuildError

from . import TEST_IMAGE, Cluster, NodeSpec

_POD = f"""\
apiVersion: v1
kind: Pod
metadata: {{name: six}}
spec:
  runtimeClassName: nvidia
  containers:
  - name: main
    image: {TEST_IMAGE}
    command: [simcuda, hold]
    resources: {{limits: {{aliyun.com/gpu-mem: 6}}}}
"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.cluster.harness", description=__doc__)
    parser.add_argument(
        "nodes",
        nargs="*",
        default=["node-a=t4x2", "node-b=l40sx4"],
        help="name=profile of each node (default: %(default)s)",
    )
    options = parser.parse_args()
    specs = [NodeSpec(name, profile or "t4x2") for name, _, profile in _split(options.nodes)]
    for number in (signal.SIGINT, signal.SIGTERM):  # shells let background jobs ignore SIGINT
        signal.signal(number, _interrupt)
    try:
        with Cluster(specs) as cluster:
            sample = cluster.kubeconfig.parent.parent / "pod.yaml"
            sample.write_text(_POD)
            exports = "".join(
                f"  export {name}={value}\n" for name, value in cluster.kubectl_environment.items()
            )
            print(
                f"\nThe cluster runs until Ctrl-C. In another shell:\n\n"
                f"{exports}"
                f"  export PATH={cluster.binaries.kubernetes}:$PATH\n\n"
                "  kubectl get nodes -o custom-columns="
                "'NAME:.metadata.name,GPU-MEM:.status.allocatable.aliyun\\.com/gpu-mem'\n"
                f"  kubectl apply -f {sample}\n"
                "  kubectl logs six\n",
                flush=True,
            )
            signal.pause()
    except KeyboardInterrupt:
        return 0
    except (ClusterBuildError, FileNotFoundError, PermissionError) as error:
        print(f"cluster: {error}", file=sys.stderr)
        return 1
    return 0


def _split(nodes: list[str]) -> list[tuple[str, str, str]]:
    return [node.partition("=") for node in nodes]


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
