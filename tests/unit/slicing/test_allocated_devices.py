"""Which GPUs of a node a list selects."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpuslice.slicing.allocated_devices import allocated_gpus, missing
from gpuslice.slicing.allocated_list import AllocatedDevicesError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"
MIG = "MIG-2cf74da6-cb27-5bbe-be02-6da14d711aca"
MIG_2 = "MIG-4cd66431-f266-5531-aea0-7ad61f357d3b"

MIGS = (
    MigDevice(MIG, 0, gpu_instance=3, compute_instance=0, profile="1g.5gb", memory_mib=4864),
    MigDevice(MIG_2, 1, gpu_instance=4, compute_instance=0, profile="1g.5gb", memory_mib=4864),
)
GPUS = [
    Gpu(A, index=0, minor=0, name="A100", memory_mib=40960),
    Gpu(B, index=1, minor=1, name="A100", memory_mib=40960, mig_enabled=True, mig=MIGS),
]


def test_only_allotted_gpus_are_kept() -> None:
    assert allocated_gpus(GPUS, [A]) == (GPUS[0],)
    assert allocated_gpus(GPUS, [B, "0"]) == tuple(GPUS)
    assert allocated_gpus(GPUS, [A.upper().replace("GPU", "GPU")]) == (GPUS[0],)


@pytest.mark.parametrize("name", [MIG_2, f"MIG-{B}/4/0", "1:1"])
def test_of_a_gpu_allotted_by_its_mig_devices_only_these_are_kept(name: str) -> None:
    [gpu] = allocated_gpus(GPUS, [name])
    assert gpu.uuid == B
    assert gpu.mig_enabled
    assert [mig.uuid for mig in gpu.mig] == [MIG_2]


def test_a_gpu_and_a_part_of_it_are_the_whole_gpu() -> None:
    assert allocated_gpus(GPUS, [MIG, B]) == (GPUS[1],)


def test_the_list_of_another_node_is_refused_with_what_is_here() -> None:
    foreign = "GPU-ffffffff-a150-5524-8c2e-d954b2d4f1b7"
    assert missing(GPUS, [A, foreign, MIG]) == (foreign,)
    with pytest.raises(AllocatedDevicesError, match=f"{foreign}.* another node.*: {A}, {B}$"):
        allocated_gpus(GPUS, [A, foreign])
    with pytest.raises(AllocatedDevicesError, match="GPUs of this node: none"):
        allocated_gpus([], [A])


def test_what_is_missing_while_a_gpu_is_silent_does_not_block_the_others() -> None:
    gone = "GPU-ffffffff-a150-5524-8c2e-d954b2d4f1b7"
    assert allocated_gpus(GPUS, [A, gone], some_do_not_answer=True) == (GPUS[0],)
    with pytest.raises(AllocatedDevicesError, match="no such device"):
        allocated_gpus(GPUS, [gone], some_do_not_answer=True)


def test_a_whole_gpu_is_never_offered_for_a_part_of_it() -> None:
    with pytest.raises(AllocatedDevicesError, match="set migStrategy to single or mixed"):
        allocated_gpus(GPUS, [MIG_2], mig_strategy=MigStrategy.NONE)
    assert allocated_gpus(GPUS, [B], mig_strategy=MigStrategy.NONE) == (GPUS[1],)


@pytest.mark.parametrize("name", [MIG, f"MIG-{A}/3/0", "0:7"])
def test_missing_rights_are_named_as_a_cause_why_mig_devices_are_not_seen(name: str) -> None:
    hidden = [replace(gpu, mig=()) for gpu in GPUS]
    with pytest.raises(AllocatedDevicesError, match=r"SYS_ADMIN.*NVIDIA_MIG_MONITOR_DEVICES=all"):
        allocated_gpus(hidden, [name])
    with pytest.raises(AllocatedDevicesError) as whole_gpu:
        allocated_gpus(hidden, ["GPU-ffffffff-a150-5524-8c2e-d954b2d4f1b7"])
    assert "SYS_ADMIN" not in str(whole_gpu.value)
