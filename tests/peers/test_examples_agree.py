"""Worked examples: what a container gets from both plugins, word for word."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from .agreement.configs import GPU, write
from .agreement.differences import MPS_LIMITS, MPS_PRE_START, MPS_PRIVILEGED_SOCKET, MPS_SHM
from .agreement.full_node import furnish
from .agreement.requests import agreed
from .conftest import MakeNode, ShareGpus, StartPair

SHARED = "nvidia.com/gpu.shared"
CDI = "k8s.device-plugin.nvidia.com"
DEVICE_LIST = "/var/run/nvidia-container-devices"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
WITH_MPS = (MPS_LIMITS, MPS_PRE_START, MPS_PRIVILEGED_SOCKET, MPS_SHM)


@dataclass(frozen=True)
class Example:
    flags: list[str]
    ids: list[str]
    env: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    annotations: list[tuple[str, str]] = field(default_factory=list)
    cdi: list[str] = field(default_factory=list)
    sharing: dict[str, object] = field(default_factory=dict)
    resource: str = GPU


def four(rename: bool = False) -> dict[str, object]:
    return {"renameByDefault": rename, "resources": [{"name": GPU, "replicas": 4}]}


EXAMPLES = {
    "a GPU": Example([], ["{gpu}"], {"NVIDIA_VISIBLE_DEVICES": "{gpu}"}),
    "two replicas of a GPU": Example(
        [],
        ["{gpu}::3", "{gpu}::1"],
        {"NVIDIA_VISIBLE_DEVICES": "{gpu}"},
        sharing={"timeSlicing": four()},
    ),
    "an index and device nodes of another root": Example(
        ["--device-id-strategy=index", "--pass-device-specs", "--dev-root=/run/nvidia/driver"],
        ["{gpu}"],
        {"NVIDIA_VISIBLE_DEVICES": "0"},
        nodes=sorted((f"/run/nvidia/driver{path}", path) for path in (*CONTROL, "/dev/nvidia0")),
    ),
    "mounts and an IMEX channel": Example(
        ["--device-list-strategy=volume-mounts", "--imex-channel-ids=0"],
        ["{gpu}"],
        {"NVIDIA_VISIBLE_DEVICES": DEVICE_LIST},
        mounts=[
            ("/dev/null", f"{DEVICE_LIST}/{{gpu}}"),
            ("/dev/null", f"{DEVICE_LIST}/imex/0"),
        ],
    ),
    "an annotation and GPUDirect Storage": Example(
        ["--device-list-strategy=cdi-annotations", "--gds-enabled"],
        ["{gpu}"],
        {"NVIDIA_GDS": "enabled"},
        annotations=[
            ("cdi.k8s.io/nvidia-device-plugin_", f"{CDI}/gpu={{gpu}},{CDI}/gds=all"),
        ],
    ),
    "CDI and a replica by MPS": Example(
        ["--device-list-strategy=cdi-cri", "--mps-root=/run/nvidia/mps"],
        ["{gpu}::0"],
        {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/{SHARED}/pipe"},
        mounts=[
            (f"/run/nvidia/mps/{SHARED}/pipe", f"/mps/{SHARED}/pipe"),
            ("/run/nvidia/mps/shm", "/dev/shm"),  # the accepted difference is taken back
        ],
        cdi=[f"{CDI}/gpu={{gpu}}"],
        sharing={"mps": four(rename=True)},
        resource=SHARED,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples_are_answered_as_written(
    make_node: MakeNode,
    start_pair: StartPair,
    share_gpus: ShareGpus,
    scratch: Path,
    name: str,
) -> None:
    example = EXAMPLES[name]
    node = make_node("t4x2")
    furnish(node)
    config = write(scratch, {"sharing": example.sharing})
    binds = {}
    if "mps" in example.sharing:
        binds = {"/mps": share_gpus(node, config)[1]}
    pair = start_pair(node, f"--config-file={config}", *example.flags, binds=binds)
    pair.wait_for(example.resource)
    uuid = node.gpu(0).uuid
    accepted = WITH_MPS if binds else ()
    ids = [text.format(gpu=uuid) for text in example.ids]
    [answer] = agreed(pair, example.resource, ids, accepted=accepted)
    assert answer.env == {key: text.format(gpu=uuid) for key, text in example.env.items()}
    assert answer.mounts == [(a, b.format(gpu=uuid), False) for a, b in example.mounts]
    assert answer.nodes == [(host, inside, "rw") for host, inside in example.nodes]
    assert answer.annotations == [(k, v.format(gpu=uuid)) for k, v in example.annotations]
    assert answer.cdi == [text.format(gpu=uuid) for text in example.cdi]
