"""What containers get from the agent, and how requests are rejected."""

from __future__ import annotations

import random

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import AdmissionError, Container, Pod
from tests.timing import timing

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig


def test_a_container_receives_one_gpu_and_the_gpushare_variables(rig: Rig) -> None:
    with rig.agent():
        rig.kubelet.wait_for(RESOURCE)
        allocation = rig.admit(3)
        [gpu] = {i.partition("-_-")[0] for i in allocation.ids}
        minor = next(g.minor for g in rig.node.gpus() if g.uuid == gpu)
        assert dict(allocation.response.envs) == {
            "NVIDIA_VISIBLE_DEVICES": gpu,
            "ALIYUN_COM_GPU_MEM_IDX": str(minor),
            "ALIYUN_COM_GPU_MEM_POD": "3",
            "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
            "ALIYUN_COM_GPU_MEM_DEV": "15",
        }
        assert not allocation.response.mounts


def test_with_mps_it_also_receives_the_pipe_directory_and_its_limits(rig: Rig) -> None:
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off"):
        rig.kubelet.wait_for(RESOURCE)
        response = rig.admit(6).response
        envs = dict(response.envs)
        assert envs["CUDA_MPS_PIPE_DIRECTORY"] == str(rig.pipe)
        assert envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "40"
        assert envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{envs['NVIDIA_VISIBLE_DEVICES']}=6144M"
        assert [(m.host_path, m.container_path, m.read_only) for m in response.mounts] == [
            (str(rig.pipe), str(rig.pipe), False)
        ]


def test_the_index_is_the_minor_number_even_if_minor_numbers_have_gaps(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    minors = {gpu.uuid: gpu.minor for gpu in rig.node.gpus()}
    assert sorted(minors.values()) != list(range(len(minors)))
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        for number in range(12):
            envs = rig.admit(5, f"pod-{number}").response.envs
            assert envs["ALIYUN_COM_GPU_MEM_IDX"] == str(minors[envs["NVIDIA_VISIBLE_DEVICES"]])


def test_containers_of_one_pod_each_have_their_own_share(rig: Rig) -> None:
    pod = Pod("two", [Container("a", {RESOURCE: 6}), Container("b", {RESOURCE: 3})])
    with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off"):
        rig.kubelet.wait_for(RESOURCE)
        a, b = rig.kubelet.admit(pod)
        assert a.response.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "6"
        assert b.response.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "3"
        assert b.response.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"
        assert not set(a.ids) & set(b.ids)


@pytest.mark.parametrize(("init", "app"), [(4, 4), (2, 6), (6, 2)])
def test_an_app_stays_on_the_gpu_of_its_init_container(rig: Rig, init: int, app: int) -> None:
    pod = Pod("p", [Container("i", {RESOURCE: init}, init=True), Container("a", {RESOURCE: app})])
    # The node advertises the other GPU as soon as it can, but not within the admission of a pod.
    with rig.agent(env=timing(usage_settle=5)):
        rig.kubelet.wait_for(RESOURCE)
        rig.admit(5, "neighbour")
        first, second = rig.kubelet.admit(pod)
        assert {i.partition("-_-")[0] for i in first.ids + second.ids} == {
            first.response.envs["NVIDIA_VISIBLE_DEVICES"]
        }


def test_each_container_of_one_call_gets_an_answer(rig: Rig) -> None:
    with rig.agent():
        endpoint = rig.kubelet.wait_for(RESOURCE)
        one, two = (gpu.uuid for gpu in rig.node.gpus())
        request = api.AllocateRequest(
            container_requests=[
                api.ContainerAllocateRequest(devices_ids=[f"{one}-_-0", f"{one}-_-1"]),
                api.ContainerAllocateRequest(devices_ids=[f"{two}-_-14"]),
            ]
        )
        reply = endpoint.call("Allocate", request, api.AllocateResponse)
        got = [
            (r.envs["NVIDIA_VISIBLE_DEVICES"], r.envs["ALIYUN_COM_GPU_MEM_CONTAINER"])
            for r in reply.container_responses
        ]
        assert got == [(one, "2"), (two, "1")]
        assert {r.envs["ALIYUN_COM_GPU_MEM_POD"] for r in reply.container_responses} == {"3"}


def test_pods_of_all_sizes_are_packed_and_never_span_gpus(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    sizes = random.Random(7)
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        used: dict[str, int] = {}
        refused = 0
        for number in range(60):
            try:
                allocation = rig.admit(sizes.randint(1, 12), f"pod-{number}")
            except AdmissionError:
                refused += 1
                continue
            gpu = allocation.response.envs["NVIDIA_VISIBLE_DEVICES"]
            assert {i.partition("-_-")[0] for i in allocation.ids} == {gpu}
            used[gpu] = used.get(gpu, 0) + len(allocation.ids)
        assert refused > 0
        assert all(units <= 32 for units in used.values())
        assert sum(used.values()) >= 0.9 * 4 * 32


def test_a_request_that_would_span_gpus_is_rejected_with_the_reason(rig: Rig) -> None:
    with rig.agent(ALL):
        rig.kubelet.wait_for(RESOURCE)
        rig.admit(10, "one")
        rig.admit(10, "two")
        with pytest.raises(AdmissionError) as refused:
            rig.admit(8, "three")
        assert str(refused.value) == (
            "Allocate failed due to rpc error: code = FAILED_PRECONDITION desc = SpansGPUs: "
            'invalid allocation request for "aliyun.com/gpu-mem": invalid request: no single GPU '
            "of this node has 8 GiB free: the request would be spread (5 GiB on GPU 0, 3 GiB on "
            "GPU 1), and a container gets its share from one GPU. Request less, or wait until "
            "another pod ends"
        )


@pytest.mark.parametrize("size", [0, -3, 1 << 30])
def test_the_kubelet_always_gets_a_preferred_allocation(rig: Rig, size: int) -> None:
    """An error here would fail the admission of the pod."""
    with rig.agent():
        endpoint = rig.kubelet.wait_for(RESOURCE)
        one, two = (gpu.uuid for gpu in rig.node.gpus())
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=[f"{one}-_-0", "?", f"{two}-_-1"],
                    must_include_deviceIDs=[f"{one}-_-0", f"{two}-_-1", "x"],
                    allocation_size=size,
                )
            ]
        )
        reply = endpoint.call("GetPreferredAllocation", request, api.PreferredAllocationResponse)
        [answer] = reply.container_responses
        assert len(answer.deviceIDs) == (2 if size > 0 else 0)


def test_a_very_long_id_is_rejected_with_a_short_reason(rig: Rig) -> None:
    with rig.agent():
        endpoint = rig.kubelet.wait_for(RESOURCE)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=["x" * 1_000])]
        )
        with pytest.raises(
            Exception, match=f"{Code.UNKNOWN_DEVICE}: .*unknown device: x+….*Delete the pod"
        ):
            endpoint.call("Allocate", request, api.AllocateResponse)


def test_unknown_ids_are_rejected_and_change_nothing(rig: Rig) -> None:
    with rig.agent() as agent:
        endpoint = rig.kubelet.wait_for(RESOURCE)
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=["GPU-gone-_-3"])]
        )
        with pytest.raises(
            Exception, match=f"{Code.UNKNOWN_DEVICE}: .*unknown device: GPU-gone-_-3"
        ):
            endpoint.call("Allocate", request, api.AllocateResponse)
        assert rig.admit(1).response.envs["ALIYUN_COM_GPU_MEM_CONTAINER"] == "1"
        assert agent.logged(Code.UNKNOWN_DEVICE) == 1


def test_equal_requests_get_equal_bytes_even_after_a_restart(rig: Rig) -> None:
    answers = []
    for _ in range(2):
        with rig.agent("--mps-pipe", str(rig.pipe), "--mps-check", "off") as agent:
            endpoint = rig.kubelet.wait_for(RESOURCE)
            uuid = rig.node.gpus()[1].uuid
            ids = [f"{uuid}-_-{n}" for n in range(4)]
            request = api.AllocateRequest(
                container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
            )
            payload = request.SerializeToString()
            answers += [endpoint.call_raw("Allocate", payload) for _ in range(3)]
            agent.stop()
        rig.kubelet.restart()
    assert len(set(answers)) == 1
