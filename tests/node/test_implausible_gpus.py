"""Nonsense that NVML reports about one GPU, and the others."""

from __future__ import annotations

import signal

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode

from .conftest import MakeRig
from .rig import GPU, RESOURCE, Rig

EIB = 1 << 60
NONSENSE = {
    "name-not-utf-8": {"name": "Tesla \udcff\udcfe"},
    "name-with-escape-sequences": {"name": "Tesla \x1b[2J"},
    "uuid-garbage": {"uuid": "???"},
    "uuid-of-another": {"uuid": "another"},
    "uuid-empty": {"uuid": ""},
    "memory-8-eib": {"memory.total": 8 * EIB - 1},
    "memory-0": {"memory.total": 0},
    "minor-absurd": {"minor": 4_000_000_000},
}


def corrupt(node: SimNode, index: int, values: dict[str, object]) -> None:
    node.set({f"gpu.{index}.{key}": str(value) for key, value in values.items()})


@pytest.mark.parametrize("values", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_about_one_gpu_leaves_the_others_advertised(
    values: dict[str, object], make_rig: MakeRig
) -> None:
    rig = make_rig("v100x4")
    uuids = [gpu.uuid for gpu in rig.node.gpus()]
    if values == {"uuid": "another"}:
        values = {"uuid": uuids[1]}
        others = set(uuids[2:])  # nothing outside of the driver shows whose UUID it is
    else:
        others = set(uuids[1:])
    corrupt(rig.node, 0, values)
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        assert rig.advertised() == {GPU: sorted(others)}
        assert rig.healthy(GPU) == others
        assert agent.logged(Code.GPU_IMPLAUSIBLE, "skipping GPU 0") == 1
        agent.send(signal.SIGHUP)
        agent.wait_for_code(Code.RECONCILED)
        assert rig.healthy(GPU) == others
        assert agent.stop() == 0


def test_memory_units_of_the_other_gpus_are_the_same(make_rig: MakeRig) -> None:
    rig = make_rig("t4x2")
    first, second = (gpu.uuid for gpu in rig.node.gpus())
    corrupt(rig.node, 0, {"memory.total": 8 * EIB - 1})
    with rig.agent():
        rig.wait_for_resources(RESOURCE)
        assert (rig.healthy_units(first), rig.healthy_units(second)) == (0, 15)


def test_a_gpu_that_makes_sense_again_is_advertised_again(rig: Rig) -> None:
    first, second = rig.node.gpus()
    corrupt(rig.node, 0, {"memory.total": 0})
    with rig.plugin() as agent:
        rig.wait_for_resources(GPU)
        assert rig.healthy(GPU) == {second.uuid}
        corrupt(rig.node, 0, {"memory.total": 15360 << 20})
        rig.wait_for_healthy(GPU, {first.uuid, second.uuid})
        assert agent.logged(Code.HARDWARE_CHANGED, "GPU 0 answers again") == 1
