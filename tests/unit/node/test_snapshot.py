"""Which devices a trouble strikes, and what ends it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuslice.agent.node_health import NodeHealth
from gpuslice.gpus.health import Cause, Trouble
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import MigDevice

A, B = "GPU-a", "GPU-b"


def gpu(uuid: str) -> Device:
    return Device(uuid, "0", gpu=uuid)


def mig(parent: str, gpu_instance: int, compute_instance: int = 0) -> Device:
    name = f"MIG-{parent}-{gpu_instance}-{compute_instance}"
    part = MigDevice(
        name, gpu_instance, gpu_instance, compute_instance, profile="1g.5gb", memory_mib=4864
    )
    return Device(name, f"0:{gpu_instance}", gpu=parent, mig=part)


def xid(uuid: str | None, gi: int | None = None, ci: int | None = None) -> Trouble:
    return Trouble(uuid, "XID 79", Cause.XID, 79, gi, ci)


def test_a_trouble_strikes_its_gpu_and_all_its_parts_and_no_other() -> None:
    health = NodeHealth()
    assert health.add(xid(A))
    assert not health.healthy(gpu(A))
    assert not health.healthy(mig(A, 3))
    assert health.healthy(gpu(B))
    assert health.healthy(mig(B, 3))


def test_a_trouble_without_a_gpu_strikes_all() -> None:
    health = NodeHealth()
    health.add(xid(None))
    assert not any(map(health.healthy, (gpu(A), gpu(B), mig(A, 1))))


instance = st.none() | st.integers(0, 3)


@given(gi=instance, ci=instance, own_gi=st.integers(0, 3), own_ci=st.integers(0, 3))
def test_each_half_of_an_instances_address_counts_only_where_it_is_known(
    gi: int | None, ci: int | None, own_gi: int, own_ci: int
) -> None:
    health = NodeHealth()
    health.add(xid(A, gi, ci))
    struck = gi in (None, own_gi) and ci in (None, own_ci)
    assert health.healthy(mig(A, own_gi, own_ci)) is not struck
    assert health.healthy(mig(B, own_gi, own_ci))
    # Offered whole, a GPU is as healthy as its worst part.
    assert not health.healthy(gpu(A))


def test_a_gpu_that_says_the_same_again_is_no_news() -> None:
    health = NodeHealth()
    assert health.add(xid(A))
    assert not health.add(xid(A))
    assert health.add(xid(A, 1))


def test_a_gpu_that_left_and_comes_back_is_a_new_one() -> None:
    health = NodeHealth()
    health.add(xid(A))
    health.add(xid(B))
    health.forget_absent({B})
    assert health.healthy(gpu(A))
    assert not health.healthy(gpu(B))


def test_a_trouble_of_an_unknown_gpu_is_not_forgotten_with_any_gpu() -> None:
    health = NodeHealth()
    health.add(xid(None))
    health.forget_absent({A})
    assert not health.healthy(gpu(A))
    health.clear()
    assert health.healthy(gpu(A))


def test_while_the_node_cannot_be_read_nothing_is_healthy_and_nothing_is_forgotten() -> None:
    health = NodeHealth()
    health.add(xid(A))
    health.suspend()
    assert not any(map(health.healthy, (gpu(A), gpu(B), mig(B, 1))))
    health.resume()
    assert not health.healthy(gpu(A))
    assert health.healthy(gpu(B))
    assert health.healthy(mig(B, 1))


def test_a_new_watch_starts_with_what_it_can_see_for_itself() -> None:
    health = NodeHealth()
    health.add(Trouble(None, "GPU errors cannot be watched", Cause.UNWATCHED))
    health.add(Trouble("GPU-b", "XID 79", Cause.XID, 79))
    health.begin_watch()
    assert health.healthy_gpu("GPU-a")
    assert not health.healthy_gpu("GPU-b")
