"""What is in Allocate's answer, and what is in the CDI specification of a container."""

from __future__ import annotations

from gpuslice.inject.bound import named_answer, specified
from gpuslice.inject.edits import ContainerEdits, DeviceNode, Mount

EDITS = ContainerEdits(
    {"NVIDIA_VISIBLE_DEVICES": "GPU-1", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "20"},
    (Mount("/run/mps", "/run/mps"),),
    (DeviceNode("/dev/nvidia0", "/dev/nvidia0"),),
    {"cdi.k8s.io/x": "nvidia.com/gpu=GPU-1"},
    ("nvidia.com/gpu=GPU-1",),
)
NAME = "gpuslice.io/container=c1"


def test_a_strict_answer_has_no_limits_and_no_gpu_without_cdi() -> None:
    answer = named_answer(EDITS, NAME, strict=True)
    assert answer == ContainerEdits(
        {"NVIDIA_VISIBLE_DEVICES": "void"},
        annotations=EDITS.annotations,
        cdi_devices=(NAME, "nvidia.com/gpu=GPU-1"),
    )


def test_another_answer_has_the_limits_as_well() -> None:
    answer = named_answer(EDITS, NAME, strict=False)
    assert answer.env == EDITS.env
    assert answer.mounts == EDITS.mounts
    assert answer.cdi_devices == (NAME, "nvidia.com/gpu=GPU-1")


def test_the_specification_has_what_a_pod_must_not_override() -> None:
    assert specified(EDITS) == ContainerEdits(EDITS.env, EDITS.mounts, EDITS.devices)
