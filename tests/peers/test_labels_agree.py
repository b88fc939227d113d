"""Our labels against those of NVIDIA's feature discovery, line by line, on every simulated node.

Where they differ on purpose, the difference is listed with its reason; any other fails.
"""

from __future__ import annotations

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice_sim.node import SimNode
from gpuslice_sim.profiles import profiles

from .build import Peers
from .conftest import MakeNode

Labels = dict[str, str]
Run = Callable[..., subprocess.CompletedProcess[str]]
Compare = Callable[..., tuple[Labels, Labels]]

BIN = Path(sys.executable).parent
ONCE = ("--oneshot", "--no-timestamp", "--use-node-feature-api=false")
CONFIGS = {
    "none": "",
    "single": "flags: {migStrategy: single}",
    "mixed": "flags: {migStrategy: mixed}",
    "time-slicing": "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}",
    "renamed": """
sharing:
  timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 3}]}
""",
    "single-time-slicing": """
flags: {migStrategy: single}
sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
""",
    "mixed-time-slicing": """
flags: {migStrategy: mixed}
sharing:
  timeSlicing:
    resources: [{name: nvidia.com/gpu, replicas: 2}, {name: nvidia.com/mig-1g.5gb, replicas: 5}]
""",
    "mps": """
flags: {mpsRoot: /run/nvidia/mps}
sharing: {mps: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}
""",
}
# NVIDIA's program ends with an error where a GPU is in MIG mode and MPS is configured, and leaves
# the node without labels. Ours says whether other GPUs are left for MPS.
LEFT_FOR_MPS = {"a100x2-mig-single": "false", "a100x2-mig-mixed": "true"}
NO_PEER = [(profile, "mps") for profile in LEFT_FOR_MPS]
# A GPU differs from the others: their plugin advertises nothing, and ours skips that GPU.
SKIPPED_BY_SINGLE = [("a100x2-mig-mixed", "single"), ("a100x2-mig-mixed", "single-time-slicing")]
# It has keys for one model only, and any of them may get there: it depends on the order of a map.
# Ours tells the one with most GPUs, and every model by a key of its own.
SEVERAL_MODELS = ["mixed"]
OF_A_MODEL = {
    f"nvidia.com/gpu.{name}"
    for name in ("product", "count", "memory", "family", "compute.major", "compute.minor")
}


@pytest.fixture
def run(peers: Peers, scratch: Path) -> Run:
    """run(node, program, …): once, to the file of that name."""
    machine = scratch / "machine"
    machine.write_text("Simulated (Node) 1.\n")
    programs = {
        "theirs": peers.feature_discovery,
        "ours": BIN / "gpu-feature-discovery",
    }

    def start(node: SimNode, which: str, *flags: str) -> subprocess.CompletedProcess[str]:
        place = [f"--output-file={scratch / which}", f"--machine-type-file={machine}"]
        return subprocess.run(
            node.namespace_command([str(programs[which]), *ONCE, *place, *flags]),
            env=node.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    return start


@pytest.fixture
def compare(run: Run, scratch: Path) -> Compare:
    """compare(node, config): their labels and ours, without those that only we have."""

    def both(node: SimNode, config: str = "") -> tuple[Labels, Labels]:
        path = scratch / "config.yaml"
        path.write_text(f"version: v1\n{config}\n")
        for which in ("theirs", "ours"):
            done = run(node, which, f"--config-file={path}")
            assert done.returncode == 0, done.stderr
        ours = {
            k: v for k, v in labels(scratch / "ours").items() if not k.startswith("gpuslice.io")
        }
        return labels(scratch / "theirs"), ours

    return both


@pytest.mark.parametrize(
    ("profile", "config"),
    [
        (profile, config)
        for profile in profiles()
        for config in CONFIGS
        if profile not in SEVERAL_MODELS and (profile, config) not in (*NO_PEER, *SKIPPED_BY_SINGLE)
    ],
)
def test_every_label_agrees(
    make_node: MakeNode, compare: Compare, profile: str, config: str
) -> None:
    theirs, ours = compare(make_node(profile), CONFIGS[config])
    # They keep the dot at the end, which no label may have: the API server refuses it.
    assert theirs.pop("nvidia.com/gpu.machine") == "Simulated-Node-1."
    assert ours.pop("nvidia.com/gpu.machine") == "Simulated-Node-1"
    assert ours == theirs


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("profile", SEVERAL_MODELS)
def test_of_several_models_the_same_is_told_but_for_the_choice(
    make_node: MakeNode, compare: Compare, scratch: Path, profile: str, config: str
) -> None:
    theirs, ours = compare(make_node(profile), CONFIGS[config])
    apart = OF_A_MODEL | {"nvidia.com/gpu.machine"}
    assert {k: v for k, v in ours.items() if k not in apart} == {
        k: v for k, v in theirs.items() if k not in apart
    }
    assert set(ours) == set(theirs)
    # Whichever they chose, our own keys say the same of it.
    model = theirs["nvidia.com/gpu.product"].removesuffix("-SHARED")
    own = labels(scratch / "ours")
    assert own[f"gpuslice.io/gpu.{model}.count"] == theirs["nvidia.com/gpu.count"]
    assert own[f"gpuslice.io/gpu.{model}.memory"] == theirs["nvidia.com/gpu.memory"]
    assert own[f"gpuslice.io/gpu.{model}.family"] == theirs["nvidia.com/gpu.family"]


@pytest.mark.parametrize(("profile", "config"), SKIPPED_BY_SINGLE)
def test_our_labels_describe_the_gpus_that_single_advertises(
    make_node: MakeNode, compare: Compare, profile: str, config: str
) -> None:
    theirs, ours = compare(make_node(profile), CONFIGS[config])
    shared = "-SHARED" if config == "single-time-slicing" else ""
    assert theirs["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"
    assert ours["nvidia.com/gpu.product"] == f"NVIDIA-A100-SXM4-40GB{shared}"
    assert ours["nvidia.com/gpu.replicas"] == ("4" if shared else "1")


@pytest.mark.parametrize(("profile", "config"), NO_PEER)
def test_mps_on_gpus_in_mig_mode_ends_their_program_and_not_ours(
    make_node: MakeNode, run: Run, scratch: Path, profile: str, config: str
) -> None:
    node = make_node(profile)
    path = scratch / "config.yaml"
    path.write_text(f"version: v1\n{CONFIGS[config]}\n")
    theirs = run(node, "theirs", f"--config-file={path}")
    assert theirs.returncode == 1
    assert "MPS sharing is not supported" in theirs.stderr
    ours = run(node, "ours", f"--config-file={path}")
    assert ours.returncode == 0, ours.stderr
    assert labels(scratch / "ours")["nvidia.com/mps.capable"] == LEFT_FOR_MPS[profile]


def test_mps_with_the_mixed_strategy_is_refused_as_their_device_plugin_refuses_it(
    make_node: MakeNode, run: Run, scratch: Path
) -> None:
    """Their feature discovery does not check it, and labels what their plugin never offers."""
    node = make_node("a100-40x8")
    path = scratch / "config.yaml"
    path.write_text(f"version: v1\n{CONFIGS['mps']}\n")
    flags = (f"--config-file={path}", "--mig-strategy=mixed")
    assert run(node, "theirs", *flags).returncode == 0
    ours = run(node, "ours", *flags)
    assert ours.returncode == 1
    assert "mig-strategy" in ours.stderr
    assert "sharing.mps" in ours.stderr


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_every_driver_is_told_alike(make_node: MakeNode, compare: Compare, driver: int) -> None:
    theirs, ours = compare(make_node("t4x2", driver=driver))
    for kind in ("driver", "runtime"):
        told = {k: v for k, v in theirs.items() if k.startswith(f"nvidia.com/cuda.{kind}")}
        assert told
        assert told.items() <= ours.items()


@pytest.mark.parametrize("cliques", [[7] * 8, [7] * 7 + [8]])
def test_the_fabric_is_told_alike(
    make_node: MakeNode, compare: Compare, cliques: list[int]
) -> None:
    node = make_node("h100x8")
    for index, clique in enumerate(cliques):
        node.set(
            {
                f"gpu.{index}.fabric.state": 3,
                f"gpu.{index}.fabric.status": 0,
                f"gpu.{index}.fabric.cluster": "5e5c2d80-1234-4000-8000-00000000abcd",
                f"gpu.{index}.fabric.clique": clique,
            }
        )
    theirs, ours = compare(node)
    told = theirs.get("nvidia.com/gpu.clique")
    assert told == ("5e5c2d80-1234-4000-8000-00000000abcd.7" if len(set(cliques)) == 1 else None)
    assert ours.get("nvidia.com/gpu.clique") == told


def test_virtual_gpus_are_told_alike(make_node: MakeNode, compare: Compare) -> None:
    node = make_node("t4x2")
    function = next(iter(sorted((node.root / "sys/bus/pci/devices").iterdir())))
    record = b"VF" + bytes([0, 22]) + b"550.54.10".ljust(10, b"\0") + b"r550_00".ljust(10, b"\0")
    capability = bytes([0x09, 0, 3 + len(record)]) + record
    space = bytearray((function / "config").read_bytes())
    struct.pack_into("<H", space, 0x06, 0x10)
    space[0x34] = 0xD0
    space[0xD0 : 0xD0 + len(capability)] = capability
    (function / "config").write_bytes(space)
    theirs, ours = compare(node)
    expected = {
        "nvidia.com/vgpu.present": "true",
        "nvidia.com/vgpu.host-driver-version": "550.54.10",
        "nvidia.com/vgpu.host-driver-branch": "r550_00",
    }
    assert expected.items() <= theirs.items()
    assert expected.items() <= ours.items()


def test_graphics_mode_is_told_alike(make_node: MakeNode, compare: Compare) -> None:
    node = make_node("t4x2")
    functions = sorted((node.root / "sys/bus/pci/devices").iterdir())
    for wanted, count in (("unknown", 1), ("graphics", 2)):
        for function in functions[:count]:
            (function / "class").write_text("0x030000\n")
        theirs, ours = compare(node)
        assert theirs["nvidia.com/gpu.mode"] == ours["nvidia.com/gpu.mode"] == wanted


def test_a_node_without_a_driver_is_told_alike(
    make_node: MakeNode, run: Run, scratch: Path
) -> None:
    node = make_node("t4x2")
    for library in (*node.lib.iterdir(), *node.root.glob("usr/lib/*/libnvidia-ml*")):
        library.unlink()
    for which in ("theirs", "ours"):
        assert run(node, which).returncode == 1
        assert run(node, which, "--fail-on-init-error=false").returncode == 0
        assert labels(scratch / which) == {"nvidia.com/vgpu.present": "false"}


def labels(path: Path) -> Labels:
    return {k: v for k, _, v in (line.partition("=") for line in path.read_text().splitlines())}
