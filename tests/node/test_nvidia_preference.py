"""Which devices GetPreferredAllocation prefers."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Container, Pod

from .conftest import MakeRig
from .rig import GPU, Rig, needs_root

REPLICAS = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"


def admit(rig: Rig, name: str, number: int, resource: str = GPU) -> list[str]:
    return rig.kubelet.admit(Pod(name, [Container("main", {resource: number})]))[0].ids


def indices(rig: Rig, ids: list[str]) -> list[int]:
    """The indices of the GPUs of these devices or replicas."""
    owners = {gpu.uuid: gpu.index for gpu in rig.node.gpus()}
    owners |= {mig.uuid: gpu.index for gpu in rig.node.gpus() for mig in gpu.mig}
    return sorted(owners[i.partition("::")[0]] for i in ids)


@needs_root
def test_pairs_share_a_switch_and_fours_a_socket_until_the_node_is_full(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("a100-40x8")
    with rig.plugin(places={}):
        rig.kubelet.wait_for(GPU)
        four = indices(rig, admit(rig, "four", 4))
        assert four in ([0, 1, 2, 3], [4, 5, 6, 7])
        pairs = [indices(rig, admit(rig, f"pair-{n}", 2)) for n in range(2)]
        assert all(b == a + 1 and a % 2 == 0 for a, b in pairs)
        assert sorted([*four, *pairs[0], *pairs[1]]) == list(range(8))


def test_requests_for_one_gpu_do_not_split_pairs_with_many_links(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    with rig.plugin():
        rig.kubelet.wait_for(GPU)
        [first] = indices(rig, admit(rig, "one", 1))
        [second] = indices(rig, admit(rig, "other", 1))
        assert first // 2 == second // 2
        left = indices(rig, admit(rig, "pair", 2))
        assert left[0] // 2 == left[1] // 2


@pytest.mark.parametrize(
    ("policy", "singles", "pair"),
    [
        ("distributed", [[0], [1], [2], [3]], [0, 1]),
        ("packed", [[0], [0], [0], [0]], [1, 1]),
        ("spread", [[0], [1], [2], [3]], [0, 1]),
    ],
)
def test_replicas_follow_the_policy(
    make_rig: MakeRig, policy: str, singles: list[list[int]], pair: list[int]
) -> None:
    rig = make_rig("v100x4")
    with rig.plugin(rig.config(REPLICAS), f"--shared-devices-allocation-policy={policy}"):
        rig.kubelet.wait_for(GPU)
        assert [indices(rig, admit(rig, f"p{n}", 1)) for n in range(4)] == singles
        assert indices(rig, admit(rig, "pair", 2)) == pair


def test_spread_gives_a_pod_different_gpus_even_if_one_is_used_least(
    make_rig: MakeRig,
) -> None:
    rig = make_rig("v100x4")
    with rig.plugin(rig.config(REPLICAS), "--shared-devices-allocation-policy=spread"):
        rig.kubelet.wait_for(GPU)
        admit(rig, "wide", 4)
        for number in range(2):
            admit(rig, f"p{number}", 1)
        assert indices(rig, admit(rig, "again", 4)) == [0, 1, 2, 3]


@needs_root
@pytest.mark.parametrize(("policy", "gpus"), [("packed", 1), ("distributed", 2)])
def test_mig_devices_are_packed_by_the_gpu_they_are_a_part_of(
    make_rig: MakeRig, policy: str, gpus: int
) -> None:
    rig = make_rig("a100x2-mig-single")
    with rig.plugin(
        "--mig-strategy=single", f"--shared-devices-allocation-policy={policy}", places={}
    ):
        rig.kubelet.wait_for(GPU)
        used = Counter(n for i in range(6) for n in indices(rig, admit(rig, f"p{i}", 1)))
        assert len(used) == gpus
        assert sum(used.values()) == 6


def test_a_lost_gpu_does_not_change_the_preference_among_the_others(make_rig: MakeRig) -> None:
    rig = make_rig("a100-40x8")
    with rig.plugin():
        rig.kubelet.wait_for(GPU)
        gpus = [gpu.uuid for gpu in rig.node.gpus()]
        before = preferred(rig, gpus[:1] + gpus[2:], size=2)
        rig.node.faults.lost(1)
        # At once, and again when the loss is known.
        assert preferred(rig, gpus[:1] + gpus[2:], size=2) == before
        rig.wait_for_healthy(GPU, set(gpus) - {gpus[1]})
        assert preferred(rig, gpus[:1] + gpus[2:], size=2) == before
        assert gpus[1] not in admit(rig, "seven", 7)


def test_every_request_for_a_preference_gets_the_same_answer_every_time(make_rig: MakeRig) -> None:
    """An error here would fail the admission of the pod."""
    rig = make_rig("v100x4")
    with rig.plugin(rig.config(REPLICAS)):
        rig.kubelet.wait_for(GPU)
        ids = sorted(rig.kubelet.devices(GPU))
        shuffled = random.Random(3).sample(ids, len(ids))
        for size in (-1, 0, 1, 5, 16, 17, 1 << 30):
            answer = preferred(rig, ids, size=size)
            assert answer == preferred(rig, shuffled, size=size)
            assert len(answer) == len(set(answer)) == max(0, min(size, 16))
        assert preferred(rig, ["?", ids[0]], must=["x", ids[5]], size=3)[:1] == [ids[5]]
        assert preferred(rig, [], size=2) == []


def preferred(
    rig: Rig, available: list[str], *, size: int, must: list[str] | None = None
) -> list[str]:
    request = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(
                available_deviceIDs=available,
                must_include_deviceIDs=must or [],
                allocation_size=size,
            )
        ]
    )
    endpoint = rig.kubelet.wait_for(GPU)
    reply = endpoint.call("GetPreferredAllocation", request, api.PreferredAllocationResponse, 20)
    [answer] = reply.container_responses
    return list(answer.deviceIDs)
