"""What binds a container to its replicas of a GPU."""

from __future__ import annotations

from gpuslice.inject.mps import LimitKey
from gpuslice.inject.replicas import mps_pipe, mps_replica
from gpuslice.kubelet.answer import Mount
from gpuslice.slicing.limits import Limits


def test_the_daemon_of_a_resource_is_reached_through_its_own_pipe_and_shared_memory() -> None:
    answer = mps_replica("nvidia.com/gpu", "GPU-a", Limits(4096, 10), "/mps-root", LimitKey.UUID)
    assert mps_pipe("nvidia.com/gpu") == "/mps/nvidia.com/gpu/pipe"
    assert answer.env["CUDA_MPS_PIPE_DIRECTORY"] == "/mps/nvidia.com/gpu/pipe"
    assert answer.mounts == (
        Mount("/mps-root/nvidia.com/gpu/pipe", "/mps/nvidia.com/gpu/pipe"),
        Mount("/mps-root/shm", "/dev/shm"),
    )


def test_a_container_is_held_to_its_share_of_the_gpu_it_was_given() -> None:
    answer = mps_replica("nvidia.com/gpu", "GPU-a", Limits(8192, 20), "/mps", LimitKey.UUID)
    assert answer.env["CUDA_VISIBLE_DEVICES"] == "GPU-a"
    assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "GPU-a=8192M"
    assert answer.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "20"


def test_old_drivers_are_told_the_gpu_by_its_number_in_the_container() -> None:
    answer = mps_replica("nvidia.com/gpu", "GPU-b", Limits(4096, 10), "/mps", LimitKey.ORDINAL)
    assert answer.env["CUDA_VISIBLE_DEVICES"] == "GPU-b"
    assert answer.env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == "0=4096M"
