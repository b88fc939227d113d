"""Accepted differences from NVIDIA's device plugin 0.19.0: devices and their health. Both sides are
shown."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from gpuslice.codes import Code

from .agreement import differences as d
from .agreement.configs import GPU, replicas, write
from .agreement.differences import shows
from .agreement.pair import Refusal, Side
from .conftest import MakeNode, StartPair

PATIENCE = 90.0


@shows(d.ALL_REPLICAS_UNHEALTHY)
def test_our_plugin_marks_all_replicas_of_a_failed_gpu_unhealthy(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(4)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    broken = pair.node.gpu(0).uuid

    def unhealthy(side: Side) -> list[str]:
        return [i for i, health in side.health(GPU).items() if health == "Unhealthy"]

    deadline = time.monotonic() + PATIENCE
    while not (unhealthy(pair.theirs) and len(unhealthy(pair.ours)) == 4):
        assert time.monotonic() < deadline
        pair.node.faults.xid(0, 79)  # again: a watch that has just begun may have missed it
        time.sleep(0.5)
    time.sleep(0.5)
    assert len(unhealthy(pair.theirs)) == 1
    assert sorted(unhealthy(pair.ours)) == [f"{broken}::{n}" for n in range(4)]


@shows(d.DEAD_GPU)
def test_our_plugin_advertises_the_other_gpus_if_one_is_lost(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a10x4")
    node.faults.lost(1)
    pair = start_pair(node)
    assert pair.theirs.process.wait() != 0
    pair.ours.wait_for({GPU})
    assert {i for i, health in pair.ours.health(GPU).items() if health == "Healthy"} == {
        gpu.uuid for gpu in node.gpus() if gpu.index != 1
    }


@shows(d.PARTS_OF_INSTANCES)
def test_our_plugin_skips_a_part_of_a_gpu_instance(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.set({"gpu.0.mig.0.ci_slices": 1})
    pair = start_pair(node, "--mig-strategy=mixed")
    mig = "nvidia.com/mig-"
    pair.theirs.wait_for({GPU, f"{mig}1g.5gb", f"{mig}2g.10gb", f"{mig}3g.20gb"})
    pair.ours.wait_for({GPU, f"{mig}1g.5gb", f"{mig}2g.10gb"})
    assert f"{mig}3g.20gb" not in pair.ours.kubelet.resources()
    assert pair.ours.process.logged(Code.MIG_DEVICE_SKIPPED, "1c.3g.20gb") == 1


@shows(d.WHOLE_PROFILE)
def test_our_resource_names_include_media_extensions(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.faults.mig(0, ["1g.5gb+me", "1g.5gb"])
    extended, plain = node.gpu(0).mig
    pair = start_pair(node, "--mig-strategy=mixed")
    small = "nvidia.com/mig-1g.5gb"
    pair.theirs.wait_for({GPU, small})
    pair.ours.wait_for({GPU, small, f"{small}.me"})
    assert set(pair.theirs.health(small)) == {extended.uuid, plain.uuid}
    assert set(pair.ours.health(small)) == {plain.uuid}
    assert set(pair.ours.health(f"{small}.me")) == {extended.uuid}


@shows(d.SINGLE_SKIPS)
@pytest.mark.parametrize("layout", [["3g.20gb", "2g.10gb"], ["3g.20gb", "3g.20gb"]])
def test_our_plugin_skips_a_gpu_that_the_strategy_single_cannot_advertise(
    make_node: MakeNode, start_pair: StartPair, layout: list[str]
) -> None:
    node = make_node("a100-40x8")
    node.faults.mig(1, layout)
    pair = start_pair(node, "--mig-strategy=single")
    assert pair.theirs.process.wait() != 0
    pair.ours.wait_for({GPU})
    assert set(pair.ours.health(GPU)) == {gpu.uuid for gpu in node.gpus() if gpu.index != 1}
    assert pair.ours.process.logged(Code.MIG_NOT_UNIFORM) == 1


@shows(d.UNHEALTHY_REJECTED)
def test_our_plugin_rejects_devices_of_an_unhealthy_gpu(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("t4x2"))
    pair.wait_for(GPU)
    broken = pair.node.gpu(0).uuid
    deadline = time.monotonic() + PATIENCE
    while not all(side.health(GPU)[broken] == "Unhealthy" for side in (pair.theirs, pair.ours)):
        assert time.monotonic() < deadline
        pair.node.faults.xid(0, 79)  # again: a watch that has just begun may have missed it
        time.sleep(0.5)
    assert not isinstance(pair.theirs.allocate(GPU, [[broken]]), Refusal)
    rejected = pair.ours.allocate(GPU, [[broken]])
    assert isinstance(rejected, Refusal)
    assert rejected.text.startswith(f"{Code.XID}: ")
