"""gpu-feature-discovery labels every simulated node as it would label the real one."""

from __future__ import annotations

import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice_sim.node import SimNode
from gpuslice_sim.profiles import profiles

from . import facts
from .build import Peers
from .conftest import MakeNode
from .facts import Card, Instance

Labels = dict[str, str]
Discover = Callable[..., Labels]

UNIFORM = [name for name, cards in facts.CARDS.items() if len(set(cards)) == 1]
SHARING = """
version: v1
sharing:
  {strategy}:
    resources: [{{name: nvidia.com/gpu, replicas: 4}}]
"""


@pytest.fixture
def discover(peers: Peers, scratch: Path) -> Discover:
    """discover(node, "--mig-strategy=single"): the labels, without `nvidia.com/`."""

    def run(node: SimNode, *flags: str) -> Labels:
        labels = scratch / "labels"
        once = ["--oneshot", "--no-timestamp", "--use-node-feature-api=false"]
        done = subprocess.run(
            node.namespace_command(
                [str(peers.feature_discovery), *once, f"--output-file={labels}", *flags]
            ),
            env=node.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        lines = labels.read_text().splitlines()
        pairs = (line.removeprefix("nvidia.com/").partition("=") for line in lines)
        return {key: value for key, _, value in pairs}

    return run


def test_every_profile_is_judged() -> None:
    assert sorted(facts.CARDS) == sorted(profiles())


@pytest.mark.parametrize("profile", UNIFORM)
def test_a_node_is_labelled_with_what_its_gpus_are(
    make_node: MakeNode, discover: Discover, profile: str
) -> None:
    cards = facts.CARDS[profile]
    labels = discover(make_node(profile))
    expected = labels_of(cards[0], len(cards))
    if all(facts.INSTANCES.get(profile, [[]])):  # no GPU is left to be handed out whole
        expected["gpu.replicas"] = "0"
    assert gpu_labels(labels) == expected
    assert labels["mig.capable"] == str(cards[0].mig_capable).lower()
    assert labels["gpu.mode"] == "compute"
    assert labels["vgpu.present"] == "false"
    assert labels["mps.capable"] == "false"
    assert "gpu.clique" not in labels


def test_a_node_of_several_models_is_labelled_with_one_of_them(
    make_node: MakeNode, discover: Discover
) -> None:
    counts = Counter(facts.CARDS["mixed"])
    labels = gpu_labels(discover(make_node("mixed")))
    assert labels in [labels_of(card, count) for card, count in counts.items()]


@pytest.mark.parametrize(
    ("driver", "version", "cuda"),
    [
        (535, "535.247.01", "12.2"),
        (550, "550.163.01", "12.4"),
        (555, "555.58.02", "12.5"),
        (570, "570.124.06", "12.8"),
        (590, "590.48.01", "13.1"),
        (615, "615.71.09", "13.4"),
    ],
)
def test_the_driver_is_labelled_with_its_version(
    make_node: MakeNode, discover: Discover, driver: int, version: str, cuda: str
) -> None:
    labels = discover(make_node("t4x2", driver=driver))
    assert labels["cuda.driver-version.full"] == version
    assert labels["cuda.runtime-version.full"] == cuda


def test_single_mig_labels_describe_the_one_kind_of_instance(
    make_node: MakeNode, discover: Discover
) -> None:
    labels = discover(make_node("a100x2-mig-single"), "--mig-strategy=single")
    small = instance_labels("gpu", facts.SMALL, count=14)
    assert small.items() <= labels.items()
    assert labels["mig.strategy"] == "single"


def test_mixed_mig_labels_describe_every_kind_of_instance(
    make_node: MakeNode, discover: Discover
) -> None:
    labels = discover(make_node("a100x2-mig-mixed"), "--mig-strategy=mixed")
    expected = labels_of(facts.A100_40, 2)
    for kind, count in Counter(facts.INSTANCES["a100x2-mig-mixed"][0]).items():
        expected |= instance_labels(f"mig-{kind.name}", kind, count)
    assert gpu_labels(labels) == expected
    assert labels["mig.strategy"] == "mixed"


def test_a_node_of_different_instances_is_invalid_for_the_single_strategy(
    make_node: MakeNode, discover: Discover
) -> None:
    labels = discover(make_node("a100x2-mig-mixed"), "--mig-strategy=single")
    assert labels["gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-INVALID"


@pytest.mark.parametrize(
    ("strategy", "label", "capable"),
    [("timeSlicing", "time-slicing", "false"), ("mps", "mps", "true")],
)
def test_shared_gpus_are_labelled_so(
    make_node: MakeNode,
    discover: Discover,
    scratch: Path,
    strategy: str,
    label: str,
    capable: str,
) -> None:
    config = scratch / "config.yaml"
    config.write_text(SHARING.format(strategy=strategy))
    labels = discover(make_node("a100-80x8"), f"--config-file={config}")
    assert labels["gpu.product"] == "NVIDIA-A100-SXM4-80GB-SHARED"
    assert labels["gpu.replicas"] == "4"
    assert labels["gpu.sharing-strategy"] == label
    assert labels["mps.capable"] == capable


def gpu_labels(labels: Labels) -> Labels:
    """What is said of GPUs and MIG instances; the machine's name is not the simulation's."""
    apart = ("gpu.mode", "gpu.machine", "mig.capable", "mig.strategy")
    return {k: v for k, v in labels.items() if k.startswith(("gpu.", "mig")) and k not in apart}


def labels_of(card: Card, count: int) -> Labels:
    major, _, minor = card.capability.partition(".")
    return {
        "gpu.product": card.product,
        "gpu.memory": str(card.memory_mib),
        "gpu.family": card.family,
        "gpu.compute.major": major,
        "gpu.compute.minor": minor,
        "gpu.count": str(count),
        "gpu.replicas": "1",
        "gpu.sharing-strategy": "none",
    }


def instance_labels(prefix: str, kind: Instance, count: int) -> Labels:
    values = {
        "product": f"{facts.A100_40.product}-MIG-{kind.name}",
        "count": count,
        "replicas": 1,
        "sharing-strategy": "none",
        "memory": kind.memory_mib,
        "multiprocessors": kind.multiprocessors,
        "slices.gi": kind.slices,
        "slices.ci": kind.slices,
        "engines.copy": kind.copy_engines,
        "engines.decoder": kind.decoders,
        "engines.encoder": 0,
        "engines.jpeg": 0,
        "engines.ofa": 0,
    }
    return {f"{prefix}.{key}": str(value) for key, value in values.items()}
