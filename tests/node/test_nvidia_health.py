"""GPUs that fail, and the health of their devices."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from gpuslice.codes import Code
from gpuslice_sim.node import SimMig

from .conftest import MakeRig
from .rig import ENTRY_POINTS, GPU, Listener, Rig, needs_root
from .test_agent_health import cpu_seconds

REPLICAS = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"


def uuids(rig: Rig) -> list[str]:
    return [gpu.uuid for gpu in rig.node.gpus()]


@pytest.mark.parametrize("entry", ENTRY_POINTS)
def test_an_xid_makes_every_replica_unhealthy_on_every_stream(rig: Rig, entry: str) -> None:
    with rig.plugin(rig.config(REPLICAS), entry=entry) as plugin:
        endpoint = rig.kubelet.wait_for(GPU)
        sick, well = uuids(rig)
        with Listener(endpoint) as one, Listener(endpoint) as two:
            rig.node.faults.xid(0, 79)
            rig.wait_for_healthy(GPU, {f"{well}::{n}" for n in range(4)})
            rig.kubelet.wait_until(lambda: len(one.lists) == len(two.lists) == 2, "both lists")
            assert one.health() == two.health() == rig.kubelet.devices(GPU)
        assert plugin.logged(Code.XID, f"uuid={sick} reason=") == 1


def sick_by_xid(rig: Rig, sick: set[str]) -> None:
    rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)) - sick)


@needs_root
def test_an_xid_of_a_mig_instance_affects_that_instance_and_one_of_the_gpu_all_instances(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100x2-mig-single")
    text = "sharing: {timeSlicing: {resources: [{name: gpu, devices: ['0:3'], replicas: 3}]}}"
    with rig.plugin("--mig-strategy=single", rig.config(text), places={}) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        assert rig.kubelet.capacity(GPU) == 13 + 3
        first, second = (gpu.mig for gpu in rig.node.gpus())
        sick: set[str] = set()
        for device in (first[1], first[3]):
            rig.node.faults.xid(0, 94, gi=device.gi, ci=device.ci)
            sick |= set(ids_of(rig, device))
            sick_by_xid(rig, sick)
        rig.node.faults.xid(0, 94, gi=first[5].gi)  # the driver may omit the compute instance
        sick_by_xid(rig, sick | set(ids_of(rig, first[5])))
        rig.node.faults.xid(0, 79)
        sick_by_xid(rig, {i for device in first for i in ids_of(rig, device)})
        assert rig.healthy(GPU) == {mig.uuid for mig in second}


def ids_of(rig: Rig, device: SimMig) -> Iterator[str]:
    return (i for i in rig.kubelet.devices(GPU) if i.startswith(device.uuid))


@pytest.mark.parametrize(
    ("env", "harmless", "fatal"),
    [
        ({}, [13, 31, 43, 45, 68, 109], 79),
        ({"DP_DISABLE_HEALTHCHECKS": "79, 95,nonsense"}, [79, 95, 13], 48),
        ({"DP_ENABLE_HEALTHCHECKS": "31"}, [13], 31),
        ({"DP_ENABLE_HEALTHCHECKS": "all"}, [], 13),
        ({"DP_DISABLE_HEALTHCHECKS": "all", "DP_ENABLE_HEALTHCHECKS": "48"}, [79, 13], 48),
        ({"DP_DISABLE_HEALTHCHECKS": "ALL"}, [79, 48, 13], None),
        ({"DP_DISABLE_HEALTHCHECKS": "xids"}, [79], None),
    ],
    ids=lambda value: (
        " ".join(f"{k[3:10]}={v}" for k, v in value.items()) if isinstance(value, dict) else None
    ),
)
def test_the_fatal_xids_can_be_configured(
    rig: Rig, env: dict[str, str], harmless: list[int], fatal: int | None
) -> None:
    with rig.plugin(env=env) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        first, second = uuids(rig)
        for xid in harmless:
            rig.node.faults.xid(0, xid)
        if fatal is None:
            time.sleep(1.2)  # two waits of a health watch
            assert rig.healthy(GPU) == {first, second}
        else:
            # It comes last: the others have been read by then.
            rig.node.faults.xid(1, fatal)
            rig.wait_for_healthy(GPU, {first})


def test_event_waits_that_fail_make_no_gpu_unhealthy_and_cause_no_load(rig: Rig) -> None:
    with rig.plugin(rig.config(REPLICAS)) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        rig.node.faults.event_wait("UNKNOWN")
        plugin.wait_for_code(Code.EVENT_WAIT_FAILED)
        before, began = cpu_seconds(plugin), time.monotonic()
        time.sleep(1.5)
        assert cpu_seconds(plugin) - before < 0.3 * (time.monotonic() - began)
        assert rig.kubelet.allocatable(GPU) == 8
        rig.node.faults.event_wait(None)
        rig.node.faults.xid(1, 79)
        first = uuids(rig)[0]
        rig.wait_for_healthy(GPU, {f"{first}::{n}" for n in range(4)})


def test_xids_during_a_reload_are_not_lost(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8")
    with rig.plugin(rig.config("")) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        gpus = uuids(rig)
        rig.config(REPLICAS)
        for index in range(7):
            rig.node.faults.xid(index, 79)
            time.sleep(0.1)
        plugin.wait_for_code(Code.RECONCILED)
        rig.wait_for_healthy(GPU, {f"{gpus[7]}::{n}" for n in range(4)})


def test_faults_stay_known_across_a_reload(rig: Rig) -> None:
    with rig.plugin(rig.config("")) as plugin:
        rig.kubelet.wait_for(GPU)
        plugin.wait_for_code(Code.REGISTERED)
        _, second = uuids(rig)
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(GPU, {second})
        rig.config(REPLICAS)
        rig.wait_for_healthy(GPU, {f"{second}::{n}" for n in range(4)})
