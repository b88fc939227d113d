"""GPUs -> the memory units that the kubelet sees."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig


@pytest.mark.parametrize(
    ("profile", "units"),
    [
        ("t4x2", [15] * 2),
        ("v100x4", [32] * 4),
        ("a10x4", [22] * 4),
        ("a100-40x8", [40] * 8),
        ("a100-80x8", [80] * 8),
        ("h100x8", [79] * 8),
        ("l40sx4", [44] * 4),
        ("b200x8", [179] * 8),
        ("h100x16", [79] * 16),
    ],
)
def test_the_memory_of_every_gpu_is_advertised_in_gib(
    make_rig: MakeRig, profile: str, units: list[int]
) -> None:
    rig = make_rig(profile)
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        assert [rig.healthy_units(gpu.uuid) for gpu in rig.node.gpus()] == units
        assert rig.kubelet.capacity(RESOURCE) == sum(units)


def test_gpus_of_different_sizes_on_one_node_are_advertised_by_their_own_size(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("mixed")
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        sizes = {gpu.uuid: gpu.memory_total_bytes >> 30 for gpu in rig.node.gpus()}
        assert len(set(sizes.values())) == 3
        assert {uuid: rig.healthy_units(uuid) for uuid in sizes} == sizes


def test_gpus_in_mig_mode_are_skipped_with_a_warning(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-mixed")
    [mig] = [gpu for gpu in rig.node.gpus() if gpu.mig]
    [whole] = [gpu for gpu in rig.node.gpus() if not gpu.mig]
    with rig.agent() as agent:
        rig.kubelet.wait_for(RESOURCE)
        assert rig.healthy_units(whole.uuid) == rig.kubelet.capacity(RESOURCE) == 40
        agent.wait_for_code(Code.GPU_SKIPPED, rf"GPU {mig.index} \({mig.uuid}\): MIG is enabled")
        assert set(rig.kubelet.resources()) == {RESOURCE}


def test_a_node_with_gpus_in_mig_mode_only_is_an_error(make_rig: MakeRig) -> None:
    rig = make_rig("a100x2-mig-single")
    with rig.agent() as agent:
        assert agent.wait() == 1
        assert "no GPU of this node can be advertised: skipping GPU 0" in agent.output()
        assert "MIG is enabled" in agent.output()


def test_the_resource_is_registered_under_gpushares_name_and_socket(rig: Rig) -> None:
    with rig.agent():
        endpoint = rig.kubelet.wait_for(RESOURCE)
        assert endpoint.socket.name == "aliyungpushare.sock"
        assert endpoint.options.get_preferred_allocation_available
        first = rig.node.gpus()[0].uuid
        assert f"{first}-_-0" in rig.kubelet.devices(RESOURCE)


@pytest.mark.parametrize(("unit", "per_gpu"), [("256MiB", 60), ("2GiB", 7), ("1000MiB", 15)])
def test_a_unit_may_have_any_size(rig: Rig, unit: str, per_gpu: int) -> None:
    with rig.agent("--memory-unit", unit):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 2 * per_gpu


def test_the_reserve_is_subtracted_on_every_gpu(rig: Rig) -> None:
    with rig.agent("--memory-reserve", "512MiB"):
        rig.kubelet.wait_for(RESOURCE)
        assert rig.kubelet.capacity(RESOURCE) == 2 * 14


def test_small_units_get_short_ids_to_stay_below_the_message_limit(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8")
    # Eight GPUs of 40960 MiB, 163,840 devices of 2 MiB: too many for long ids.
    with rig.agent("--memory-unit", "2MiB"):
        endpoint = rig.kubelet.wait_for(RESOURCE)
        devices = rig.kubelet.devices(RESOURCE)
        assert len(devices) == 8 * 20480
        assert "7-20479" in devices
        assert endpoint.last_list_bytes < 4 * 1024 * 1024


def test_a_unit_that_would_exceed_the_message_limit_is_rejected_before_registration(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100-80x8")
    with rig.agent("--memory-unit", "MiB") as agent:
        assert agent.wait() == 1
        assert "memory unit MiB makes 655360 devices of this node" in agent.output()
        assert "Use a larger unit, for example 4MiB" in agent.output()
    assert rig.kubelet.registrations == 0


@pytest.mark.parametrize(
    ("args", "because"),
    [
        (["--memory-unit", "64GiB"], "smaller than one unit of 64GiB"),
        (["--memory-reserve", "15GiB"], "of which 15360 MiB are reserved"),
    ],
)
def test_settings_that_leave_nothing_to_advertise_are_rejected(
    rig: Rig, args: list[str], because: str
) -> None:
    with rig.agent(*args) as agent:
        assert agent.wait() == 1
        assert because in agent.output()
