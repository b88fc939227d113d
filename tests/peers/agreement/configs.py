"""Configuration files that both plugins read, and files and flags that a plugin rejects."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuslice_sim.node import SimNode
from tests.peers.build import Peers

from .pair import OURS, ListeningKubelet, Side, running

GPU = "nvidia.com/gpu"


def write(scratch: Path, config: object) -> Path:
    """JSON is YAML."""
    path = scratch / "config.yaml"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def replicas(count: int, **more: object) -> dict[str, object]:
    return {"resources": [{"name": GPU, "replicas": count, **more}]}


def both_reject(
    peers: Peers,
    node: SimNode,
    scratch: Path,
    flags: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> str:
    """Both exit with an error; returns the output of ours."""
    with (
        running(peers.device_plugin, node, scratch / "t", flags, env or {}, {}) as theirs,
        running(OURS, node, scratch / "o", flags, env or {}, {}) as ours,
    ):
        assert theirs.wait() != 0
        assert ours.wait() in (1, 2)
        assert "Traceback" not in ours.output()
        return ours.output()


def only_ours_rejects(peers: Peers, node: SimNode, scratch: Path, *flags: str) -> str:
    """NVIDIA's registers and ours exits with an error; returns the output of ours."""
    with (
        ListeningKubelet(scratch / "t") as kubelet,
        running(peers.device_plugin, node, kubelet.directory, flags, {}, {}) as theirs,
        running(OURS, node, scratch / "o", flags, {}, {}) as ours,
    ):
        Side("NVIDIA's plugin", kubelet, theirs).wait_for({GPU})
        assert ours.wait() in (1, 2)
        return ours.output()
