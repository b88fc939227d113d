import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.inject.edits import ContainerEdits, Hook, Mount
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.wire import DeviceGroup, DeviceListEncoder, allocate_response
from gpuslice.slicing.device_ids import DeviceIds

names = st.text(st.characters(codec="ascii", categories=["Lu", "Nd"]), min_size=1, max_size=12)


A, B = DeviceIds("a-", 2), DeviceIds("b-", 1)


def decoded(encoded: bytes) -> list[tuple[str, str]]:
    devices = api.ListAndWatchResponse.FromString(encoded).devices
    return [(device.ID, device.health) for device in devices]


def test_groups_of_several_gpus_are_one_list() -> None:
    groups = (DeviceGroup(A, healthy=True), DeviceGroup(B, healthy=False))
    assert decoded(DeviceListEncoder().encode(groups)) == [
        ("a-0", "Healthy"),
        ("a-1", "Healthy"),
        ("b-0", "Unhealthy"),
    ]


def test_a_group_is_encoded_again_only_if_it_changes() -> None:
    encoder = DeviceListEncoder()
    good = (DeviceGroup(A, healthy=True), DeviceGroup(B, healthy=True))
    bad = (DeviceGroup(A, healthy=True), DeviceGroup(B, healthy=False))
    for groups, health in ((good, "Healthy"), (bad, "Unhealthy"), (good, "Healthy")):
        assert decoded(encoder.encode(groups))[-1] == ("b-0", health)
        assert decoded(encoder.encode(groups))[0] == ("a-0", "Healthy")
    fewer = (DeviceGroup(DeviceIds("a-", 1), healthy=True),)
    assert decoded(encoder.encode(fewer)) == [("a-0", "Healthy")]
    assert decoded(encoder.encode(())) == []


def test_the_numa_node_is_a_part_of_the_device() -> None:
    encoded = DeviceListEncoder().encode([DeviceGroup(B, healthy=True, numa_node=3)])
    [device] = api.ListAndWatchResponse.FromString(encoded).devices
    assert [node.ID for node in device.topology.nodes] == [3]


def test_an_answer_arrives_as_it_was_meant() -> None:
    answer = ContainerEdits({"A": "1"}, (Mount("/host", "/inside", read_only=True),))
    received = api.AllocateResponse.FromString(allocate_response([answer])).container_responses[0]
    assert dict(received.envs) == {"A": "1"}
    assert [(m.host_path, m.container_path, m.read_only) for m in received.mounts] == [
        ("/host", "/inside", True)
    ]


def test_hooks_cannot_be_sent_to_the_kubelet() -> None:
    with pytest.raises(ValueError, match="no hooks"):
        allocate_response([ContainerEdits(hooks=(Hook("update-ldcache"),))])


@given(st.dictionaries(names, names, max_size=8), st.randoms())
def test_equal_answers_give_equal_bytes(env: dict[str, str], random: object) -> None:
    items = list(env.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    shuffled = ContainerEdits(dict(items))
    assert allocate_response([ContainerEdits(env)]) == allocate_response([shuffled])
