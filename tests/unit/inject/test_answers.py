"""What a container receives, to the byte."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.inject.gpushare import gpushare_variables
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.kubelet.answer import ContainerAnswer, Mount, merged
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import Grant, grant
from gpuslice.slicing.limits import Limits, ThreadShare, limits_of
from gpuslice.slicing.offer import Offer
from gpuslice.slicing.units import MemoryUnit
from tests.unit.slicing.strategies import offers

GPU = Gpu("GPU-bb", index=0, minor=1, name="Simulated", memory_mib=15360)
SLICE = Grant(GPU, units=3, gpu_units=15, unit=MemoryUnit(1024))


def test_the_gpushare_variables_name_the_gpu_by_its_minor_number() -> None:
    assert gpushare_variables(SLICE, pod_units=5).env == {
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_POD": "5",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "3",
        "ALIYUN_COM_GPU_MEM_DEV": "15",
    }


def test_an_mps_client_gets_its_pipe_directory_and_both_limits() -> None:
    answer = mps_client(GPU, Limits(3072, 20), "/root/nvidia-mps", LimitKey.UUID)
    assert answer == ContainerAnswer(
        env={
            "CUDA_VISIBLE_DEVICES": "GPU-bb",
            "CUDA_MPS_PIPE_DIRECTORY": "/root/nvidia-mps",
            "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "GPU-bb=3072M",
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20",
        },
        mounts=(Mount("/root/nvidia-mps", "/root/nvidia-mps", read_only=False),),
    )


def test_without_a_thread_share_no_percentage_is_set() -> None:
    answer = mps_client(GPU, Limits(3072, None), "/mps", LimitKey.UUID)
    assert "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE" not in answer.env


@pytest.mark.parametrize(
    ("driver", "key"),
    [
        ("535.183.01", "0"),
        ("550.54.15", "0"),
        ("570.124.06", "GPU-bb"),
        ("615.71.09", "GPU-bb"),
        ("unknown", "GPU-bb"),
    ],
)
def test_the_memory_limit_names_the_gpu_in_the_form_the_driver_applies(
    driver: str, key: str
) -> None:
    answer = mps_client(GPU, Limits(3072, 20), "/mps", LimitKey.for_driver(driver))
    assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{key}=3072M"


@given(offers(), st.data(), st.sampled_from(["535.183.01", "570.124.06", "615.71.09"]))
def test_a_limit_never_names_a_gpu_that_the_process_does_not_see(
    offer: Offer, data: st.DataObject, driver: str
) -> None:
    if not offer.gpus:
        return
    sliced = data.draw(st.sampled_from(offer.gpus))
    units = data.draw(st.lists(st.sampled_from(list(sliced.ids())), min_size=1, unique=True))
    slice_ = grant(offer, units)
    limits = limits_of(slice_, ThreadShare.PROPORTIONAL)
    env = mps_client(slice_.gpu, limits, "/mps", LimitKey.for_driver(driver)).env
    visible = env["CUDA_VISIBLE_DEVICES"].split(",")
    assert visible == [sliced.gpu.uuid]
    [(device, limit)] = [
        entry.split("=") for entry in env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"].split(",")
    ]
    assert device in (*visible, *map(str, range(len(visible))))
    assert limit == f"{len(units) * offer.unit.mib}M"


def test_parts_of_an_answer_must_not_contradict_each_other() -> None:
    one = ContainerAnswer({"A": "1"}, (Mount("/a", "/a"),))
    assert merged([one, ContainerAnswer({"B": "2"})]) == ContainerAnswer(
        {"A": "1", "B": "2"}, (Mount("/a", "/a"),)
    )
    with pytest.raises(ValueError, match=r"\['A'\]"):
        merged([one, ContainerAnswer({"A": "2"})])
