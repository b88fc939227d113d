"""What NVIDIA's device plugin 0.19.0 rejects, ours rejects too."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.codes import Code

from .agreement.compare import (
    registrations_agree,
)
from .agreement.configs import GPU, both_reject, write
from .build import Peers
from .conftest import MakeNode, StartPair


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--mig-strategy=some"], "mig-strategy"),
        (["--mig-strategy="], "mig-strategy"),
        (["--device-list-strategy=some"], "device-list-strategy"),
        (["--device-list-strategy=envvar,some"], "device-list-strategy"),
        (["--device-list-strategy="], "device-list-strategy"),
        (["--device-id-strategy=name"], "device-id-strategy"),
        (["--device-discovery-strategy=guess"], "device-discovery-strategy"),
        (["--imex-channel-ids=1"], "imex-channel-ids"),
        (["--imex-channel-ids=0,0"], "imex-channel-ids"),
        (["--imex-channel-ids=x"], "imex-channel-ids"),
        (["--imex-channel-ids=0", "--imex-required"], "channel 0 does not exist"),
        (["--pass-device-specs=maybe"], "pass-device-specs"),
        (["--no-such-flag"], "flag provided but not defined: -no-such-flag"),
        (["--config-file=/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
def test_invalid_flags_are_rejected_by_both(
    make_node: MakeNode, peers: Peers, scratch: Path, flags: list[str], named: str
) -> None:
    assert named in both_reject(peers, make_node("t4x2"), scratch, flags)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MIG_STRATEGY", "some"),
        ("DEVICE_LIST_STRATEGY", "envvar,some"),
        ("PASS_DEVICE_SPECS", "yes"),
        ("FAIL_ON_INIT_ERROR", "maybe"),
        ("CONFIG_FILE", "/nonexistent.yaml"),
    ],
)
def test_invalid_variables_are_rejected_by_both(
    make_node: MakeNode, peers: Peers, scratch: Path, variable: str, value: str
) -> None:
    words = both_reject(peers, make_node("t4x2"), scratch, [], {variable: value})
    assert value.rpartition(",")[2] in words


def time_slicing(**entry: object) -> dict[str, object]:
    return {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2} | entry]}}}


def four(rename: bool = False) -> dict[str, object]:
    return {"renameByDefault": rename, "resources": [{"name": GPU, "replicas": 4}]}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("flags: [", "not valid YAML"),
        ("- a", "it is a list; use a section with these keys"),
        ({"version": "v2"}, "unknown version"),
        ({"flags": "none"}, "flags"),
        ({"flags": {"migStrategy": "some"}}, "flags.migStrategy"),
        ({"flags": {"plugin": {"deviceListStrategy": "some"}}}, "deviceListStrategy"),
        ({"flags": {"plugin": {"deviceListStrategy": ["envvar", "x"]}}}, "deviceListStrategy"),
        ({"flags": {"plugin": {"deviceIDStrategy": "x"}}}, "deviceIDStrategy"),
        ({"flags": {"plugin": {"passDeviceSpecs": "true"}}}, "passDeviceSpecs"),
        ({"flags": {"gfd": {"sleepInterval": "soon"}}}, "flags.gfd.sleepInterval"),
        ({"imex": {"channelIDs": [1]}}, "imex"),
        ({"resources": {"gpus": [{"name": "gpu"}]}}, "pattern"),
        ({"resources": {"gpus": [{"pattern": "*"}]}}, "name"),
        ({"sharing": {"timeSlicing": {"renameByDefault": True}}}, "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu"}]}}}, "replicas"),
        ({"sharing": {"timeSlicing": {"resources": [{"replicas": 2}]}}}, "name"),
        (time_slicing(replicas=0), "number of replicas must be >="),
        (time_slicing(replicas=-3), "number of replicas must be >="),
        (time_slicing(replicas="four"), "replicas"),
        (time_slicing(replicas="2"), "replicas"),
        (time_slicing(name="nvidia.com/GPU"), "nvidia.com/GPU"),
        (time_slicing(name="nvidia.com/g p u"), "nvidia.com/g p u"),
        (time_slicing(name="example.com/gpu"), "example.com/gpu"),
        (time_slicing(name="a" * 60), "63"),
        (time_slicing(rename="a b"), "rename"),
        (time_slicing(devices=0), "devices"),
        (time_slicing(devices=-1), "devices"),
        (time_slicing(devices="some"), "devices"),
        (time_slicing(devices=["x"]), "devices"),
        ({"sharing": {"mps": four()}}, "using MPS requires --mps-root"),
        (
            {"flags": {"migStrategy": "mixed", "mpsRoot": "/mps"}, "sharing": {"mps": four()}},
            "mixed",
        ),
    ],
)
def test_invalid_files_are_rejected_by_both(
    make_node: MakeNode,
    peers: Peers,
    scratch: Path,
    config: str | dict[str, object],
    named: str,
) -> None:
    flags = [f"--config-file={write(scratch, config)}"]
    assert named in both_reject(peers, make_node("t4x2"), scratch, flags)


def test_without_a_driver_both_exit(make_node: MakeNode, peers: Peers, scratch: Path) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    both_reject(peers, node, scratch, [])


def test_without_a_driver_both_wait_if_the_settings_allow_it(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    pair = start_pair(node, "--fail-on-init-error=false")
    pair.ours.process.wait_for_code(Code.WAITING_FOR_GPUS)
    pair.theirs.process.wait_for_output("No devices found|If this is a GPU node")
    registrations_agree(pair)
