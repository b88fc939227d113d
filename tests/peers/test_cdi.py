"""nvidia-ctk describes every simulated GPU and MIG device for container runtimes."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuslice_sim.node import SimNode

from . import device_nodes, facts
from .build import Peers
from .conftest import MakeNode
from .device_nodes import Nodes

Spec = dict[str, Any]
Generate = Callable[..., Spec]


@pytest.fixture
def generate(peers: Peers) -> Generate:
    """generate(node, "--device-id=0"): the CDI specification."""

    def run(node: SimNode, *flags: str) -> Spec:
        # The driver root alone leads it to the library.
        program = ["env", "-u", "LD_LIBRARY_PATH", str(peers.ctk), "cdi", "generate"]
        source = ["--mode=nvml", f"--driver-root={node.root}", "--format=json"]
        done = subprocess.run(
            node.namespace_command([*program, *source, *flags]),
            env=node.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )
        assert done.returncode == 0, done.stderr
        spec: Spec = json.loads(done.stdout)
        return spec

    return run


@pytest.mark.parametrize("profile", facts.CARDS)
def test_every_device_is_named_by_index_and_uuid_and_brings_its_nodes(
    make_node: MakeNode, generate: Generate, profile: str
) -> None:
    node = make_node(profile)
    devices = {device["name"]: nodes_of(device) for device in generate(node)["devices"]}
    expected = expected_devices(node)
    assert len(expected) == 2 * sum(map(len, devices_per_gpu(profile)))
    everything = devices.pop("all")
    assert devices == expected
    assert everything == {path: n for nodes in expected.values() for path, n in nodes.items()}


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_what_all_devices_need_is_found_in_the_driver_root(
    make_node: MakeNode, generate: Generate, driver: int
) -> None:
    node = make_node("t4x2", driver=driver)
    edits = generate(node)["containerEdits"]
    version = node.state.values()["driver.version"]
    assert nodes_of({"containerEdits": edits}) == device_nodes.CONTROL
    mounted = {Path(mount["containerPath"]).name for mount in edits["mounts"]}
    assert {f"libnvidia-ml.so.{version}", f"libcuda.so.{version}"} <= mounted
    assert {"nvidia-smi", "nvidia-cuda-mps-control"} <= mounted
    assert all(Path(mount["hostPath"]).is_file() for mount in edits["mounts"])


@pytest.mark.parametrize("name", ["1", "0:1", "uuid of a GPU", "uuid of a MIG device"])
def test_a_device_is_found_by_each_of_its_names(
    make_node: MakeNode, generate: Generate, name: str
) -> None:
    node = make_node("a100x2-mig-mixed")
    whole, instance = node.gpu(1).uuid, node.gpu(0).mig[1].uuid
    chosen = {"uuid of a GPU": whole, "uuid of a MIG device": instance}.get(name, name)
    spec = generate(node, f"--device-id={chosen}", "--no-all-device")
    names = {"1", whole} if name in ("1", "uuid of a GPU") else {"0:1", instance}
    assert {device["name"] for device in spec["devices"]} == names


def devices_per_gpu(profile: str) -> list[list[object]]:
    """The whole GPU, or its MIG devices if it has any."""
    instances = facts.INSTANCES.get(profile) or [[] for _ in facts.CARDS[profile]]
    return [list(mig) or [card] for card, mig in zip(facts.CARDS[profile], instances, strict=True)]


def expected_devices(node: SimNode) -> dict[str, Nodes]:
    expected: dict[str, Nodes] = {}
    for index, gpu in enumerate(node.gpus()):
        if not gpu.mig:
            expected[str(index)] = expected[gpu.uuid] = device_nodes.of_gpu(gpu)
        for number, mig in enumerate(gpu.mig):
            nodes = device_nodes.of_mig(node, gpu, mig)
            expected[f"{index}:{number}"] = expected[mig.uuid] = nodes
    return expected


def nodes_of(device: Spec) -> Nodes:
    """Path in the container -> the numbers that the specification states, which must be true."""
    nodes: Nodes = {}
    for entry in device["containerEdits"]["deviceNodes"]:
        numbers = (entry["major"], entry.get("minor", 0))
        there = Path(entry["hostPath"]).stat()
        assert stat.S_ISCHR(there.st_mode)
        assert numbers == (os.major(there.st_rdev), os.minor(there.st_rdev))
        nodes[entry["path"]] = numbers
    return nodes
