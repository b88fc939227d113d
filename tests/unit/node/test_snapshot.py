"""Which devices a fault affects, and what makes a part unhealthy."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.gpus.faults import Fault
from gpuslice.node.snapshot import DaemonState, Problem, Snapshot
from gpuslice.slicing.device import Device
from gpuslice.slicing.device_ids import replica_ids
from gpuslice.slicing.gpu import MigDevice
from gpuslice.slicing.pool import Part, Pool, Share

A, B = "GPU-a", "GPU-b"
instance = st.none() | st.integers(0, 3)


def gpu(uuid: str) -> Device:
    return Device(uuid, "0", gpu=uuid)


def mig(parent: str, gpu_instance: int, compute_instance: int = 0) -> Device:
    name = f"MIG-{parent}-{gpu_instance}-{compute_instance}"
    device = MigDevice(
        name, gpu_instance, gpu_instance, compute_instance, profile="1g.5gb", memory_mib=4864
    )
    return Device(name, f"0:{gpu_instance}", gpu=parent, mig=device)


def part(device: Device, daemon: str | None = None) -> Part:
    return Part(device, replica_ids(device.uuid, 4), Share(1024), daemon)


def xid(uuid: str | None, gi: int | None = None, ci: int | None = None) -> Fault:
    return Fault(Code.XID, "XID 79", uuid, gi, ci, 79)


def healthy(snapshot: Snapshot, *devices: Device) -> list[bool]:
    return [snapshot.healthy(part(device)) for device in devices]


def test_a_fault_affects_its_gpu_and_all_its_mig_devices_and_no_other() -> None:
    snapshot = Snapshot(faults=(xid(A),))
    assert healthy(snapshot, gpu(A), mig(A, 3)) == [False, False]
    assert healthy(snapshot, gpu(B), mig(B, 3)) == [True, True]
    assert snapshot.gpu_faults(A) == (xid(A),)
    assert snapshot.gpu_faults(B) == ()


def test_a_fault_without_a_gpu_affects_all() -> None:
    snapshot = Snapshot(faults=(xid(None),))
    assert healthy(snapshot, gpu(A), gpu(B), mig(A, 1)) == [False, False, False]


@given(gi=instance, ci=instance, own_gi=st.integers(0, 3), own_ci=st.integers(0, 3))
def test_each_part_of_an_instance_counts_only_if_the_driver_names_it(
    gi: int | None, ci: int | None, own_gi: int, own_ci: int
) -> None:
    snapshot = Snapshot(faults=(xid(A, gi, ci),))
    affected = gi in (None, own_gi) and ci in (None, own_ci)
    assert healthy(snapshot, mig(A, own_gi, own_ci)) == [not affected]
    assert healthy(snapshot, mig(B, own_gi, own_ci)) == [True]
    # A whole GPU is affected by the faults of all its instances.
    assert healthy(snapshot, gpu(A)) == [False]


def test_a_part_is_unhealthy_while_the_daemon_that_limits_it_does_not_answer() -> None:
    down = Problem(Code.MPS_UNAVAILABLE, "no answer")
    limited, free = part(gpu(A), "one"), part(gpu(A))
    for daemons, problems in (
        ({"one": DaemonState(), "other": DaemonState(down)}, []),
        ({"one": DaemonState(down)}, [Code.MPS_UNAVAILABLE]),
        # Not probed yet: nothing is promised that may not hold.
        ({}, [Code.MPS_UNAVAILABLE]),
    ):
        snapshot = Snapshot(daemons=daemons)
        assert [problem.code for problem in snapshot.part_problems(limited)] == problems
        assert snapshot.part_problems(free) == ()


def test_all_reasons_are_listed() -> None:
    down = Problem(Code.MPS_UNAVAILABLE, "no answer")
    snapshot = Snapshot(faults=(xid(A), xid(None)), daemons={"one": DaemonState(down)})
    codes = [problem.code for problem in snapshot.part_problems(part(gpu(A), "one"))]
    assert codes == [Code.XID, Code.XID, Code.MPS_UNAVAILABLE]


def test_a_pool_is_found_by_its_resource() -> None:
    pool = Pool("nvidia.com/gpu", (part(gpu(A)),))
    snapshot = Snapshot(pools=(pool,))
    assert snapshot.pool("nvidia.com/gpu") is pool
    assert snapshot.pool("nvidia.com/other") is None


def test_the_time_and_the_generation_are_no_difference() -> None:
    assert xid(A) == replace(xid(A), since=5.0)
    assert DaemonState() == DaemonState(since=5.0)
    assert Snapshot(generation=1) == Snapshot(generation=2)
