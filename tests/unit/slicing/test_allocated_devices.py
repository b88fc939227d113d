"""Reading the list of GPUs that a nested node was given."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.allocated_devices import (
    AllocatedDevicesError,
    allocated_gpus,
    missing,
    parse_allocated_devices,
)
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"
MIG = "MIG-2cf74da6-cb27-5bbe-be02-6da14d711aca"
MIG_2 = "MIG-4cd66431-f266-5531-aea0-7ad61f357d3b"
NAME = "NVIDIA_ALLOCATED_DEVICES"

MIGS = (
    MigDevice(MIG, 0, gpu_instance=3, compute_instance=0, profile="1g.5gb", memory_mib=4864),
    MigDevice(MIG_2, 1, gpu_instance=4, compute_instance=0, profile="1g.5gb", memory_mib=4864),
)
GPUS = [
    Gpu(A, index=0, minor=0, name="A100", memory_mib=40960),
    Gpu(B, index=1, minor=1, name="A100", memory_mib=40960, mig_enabled=True, mig=MIGS),
]


@pytest.mark.parametrize(
    "text",
    [
        f"{NAME}={A},{B}\n",
        f"{NAME}={A},{B}",
        f"export {NAME}={A},{B}\n",
        f'{NAME}="{A},{B}"\n',
        f"{NAME}='{A}, {B}'  # mine\n",
        f"{NAME}={A},{B} # mine\n",
        f"# the GPUs of this node\n\nPATH=/bin:/usr/bin\n{NAME}={A},{B}\nOTHER=\n",
        f"  {NAME} = {A} , {B}  \r\n",
        f"{NAME}={A},{B}\n{NAME}={A},{B}\n",
        f"{A},{B}",
        f" {A}, {B}\n",
    ],
)
def test_all_ways_to_write_a_list_are_read_alike(text: str) -> None:
    assert parse_allocated_devices(text) == (A, B)


@pytest.mark.parametrize("device", [A, MIG, f"MIG-{A}/3/0", "0", "12", "0:1"])
def test_gpus_and_mig_devices_go_by_uuid_or_index(device: str) -> None:
    assert parse_allocated_devices(f"{NAME}={device}") == (device,)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("\n \n# nothing\n", "empty"),
        (f"{NAME}=\n", "names no GPU"),
        (f'{NAME}=""\n', "names no GPU"),
        ("OTHER=1\n", "no line sets the variable"),
        (f"{A}\n{B}\n", "no line sets the variable"),
        (f"{NAME}={A},{A}", "more than once"),
        (f"{NAME}={A},{A.replace('a5ff', 'A5FF')}", "more than once"),
        (f"{NAME}={A}\n{NAME}={B}\n", "different lists"),
        (f"{NAME}={A},,{B}", "'' is not valid: it is neither"),
        (f"{NAME}={A},", "'' is not valid: it is neither"),
        (f"{NAME}=all", "'all' is not valid: it is neither"),
        (f"{NAME}={A} {B}", "separate devices by commas"),
        (f"{NAME}={A[:-1]}", "neither the UUID"),
        (f"{NAME}={A}\x00", r"control character '\\x00'"),
        (f"{NAME}={A}\x1b[31m", "control character"),
        ("0," * 40_000, "80000 bytes, and the limit is 65536"),
    ],
)
def test_what_is_wrong_with_a_list_is_said(text: str, message: str) -> None:
    with pytest.raises(AllocatedDevicesError, match=message) as caught:
        parse_allocated_devices(text)
    assert str(caught.value).startswith(f"{NAME}: ")
    assert len(str(caught.value)) < 500


@given(st.text(max_size=200))
def test_any_text_is_either_read_or_refused(text: str) -> None:
    try:
        devices = parse_allocated_devices(text)
    except AllocatedDevicesError:
        return
    assert devices
    assert len(set(devices)) == len(devices)


@pytest.mark.parametrize("blank", [" ", "\t"])
@pytest.mark.parametrize("text", ["%s=a%sb", "%s=%s#", "%s%s", "export%s%s", '%s="%s', "%s='a'%s-"])
def test_many_blanks_are_parsed_in_linear_time(text: str, blank: str) -> None:
    with pytest.raises(AllocatedDevicesError):
        parse_allocated_devices(text % (NAME, blank * 64_000))


def test_a_comment_begins_after_a_blank() -> None:
    assert parse_allocated_devices(f"{NAME}={A} # the first") == (A,)
    with pytest.raises(AllocatedDevicesError, match="neither the UUID"):
        parse_allocated_devices(f"{NAME}={A}#1")


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
