from hypothesis import given
from hypothesis import strategies as st

from gpuslice.kubelet.answer import ContainerAnswer, Mount
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice.kubelet.wire import HEALTHY, UNHEALTHY, allocate_response, device_list

names = st.text(st.characters(codec="ascii", categories=["Lu", "Nd"]), min_size=1, max_size=12)


def test_lists_of_several_gpus_join_into_one_message() -> None:
    joined = device_list(["a-0", "a-1"], HEALTHY) + device_list(["b-0"], UNHEALTHY)
    devices = api.ListAndWatchResponse.FromString(joined).devices
    assert [(d.ID, d.health) for d in devices] == [
        ("a-0", "Healthy"),
        ("a-1", "Healthy"),
        ("b-0", "Unhealthy"),
    ]


def test_an_answer_arrives_as_it_was_meant() -> None:
    answer = ContainerAnswer({"A": "1"}, (Mount("/host", "/inside", read_only=True),))
    received = api.AllocateResponse.FromString(allocate_response([answer])).container_responses[0]
    assert dict(received.envs) == {"A": "1"}
    assert [(m.host_path, m.container_path, m.read_only) for m in received.mounts] == [
        ("/host", "/inside", True)
    ]


@given(st.dictionaries(names, names, max_size=8), st.randoms())
def test_equal_answers_give_equal_bytes(env: dict[str, str], random: object) -> None:
    items = list(env.items())
    random.shuffle(items)  # type: ignore[attr-defined]
    shuffled = ContainerAnswer(dict(items))
    assert allocate_response([ContainerAnswer(env)]) == allocate_response([shuffled])
