"""What goes wrong with a GPU, and what the driver says about it."""

from __future__ import annotations

import pynvml
import pytest

from gpuslice_sim.errors import SimError

from .conftest import Ask, MakeNode

LOST, UNSUPPORTED = pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_NOT_SUPPORTED

RECOVERY = """
def recovery(h):
    (value,) = nvmlDeviceGetFieldValues(h, [NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    return value.nvmlReturn or [value.value.uiVal]
answer = recovery(handles()[0])
"""


def test_a_lost_gpu_answers_gpu_is_lost_until_restored(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
first, second = handles()
uuid = nvmlDeviceGetUUID(first)
calls = [nvmlDeviceGetUUID, nvmlDeviceGetMemoryInfo, nvmlDeviceGetComputeRunningProcesses,
         nvmlDeviceGetUtilizationRates, nvmlDeviceGetMinorNumber]
node.faults.lost(0)
answer = [[code(c, first) for c in calls], [code(c, second) for c in calls],
          code(nvmlDeviceGetHandleByIndex, 0), code(nvmlDeviceGetHandleByUUID, uuid),
          nvmlDeviceGetCount()]
node.faults.restore(0)
answer.append([code(c, first) for c in calls])
"""
    assert ask(node, code) == [[LOST] * 5, [0] * 5, LOST, LOST, 2, [0] * 5]


@pytest.mark.parametrize(
    ("fault", "expected"),
    [("DRIVER_NOT_LOADED", 9), ("NVML_ERROR_LIB_RM_VERSION_MISMATCH", 18), (999, 999), (None, 0)],
)
def test_init_fails_as_asked(
    fault: int | str | None, expected: int, make_node: MakeNode, ask: Ask
) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("UNKNOWN")
    node.faults.nvml_init(fault)
    assert ask(node, "answer = code(nvmlInit)", init=False) == expected


def test_an_unknown_error_code_is_refused_with_the_known_ones(make_node: MakeNode) -> None:
    with pytest.raises(SimError, match=r"'OOPS' is unknown.*DRIVER_NOT_LOADED \(9\)"):
        make_node("t4x2").faults.nvml_init("OOPS")


def test_ecc_errors_add_up(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("a100-40x8")
    code = """
h = handles()[0]
total = [nvmlDeviceGetTotalEccErrors(h, kind, counter) for kind in (0, 1) for counter in (0, 1)]
places = (NVML_MEMORY_LOCATION_DRAM, NVML_MEMORY_LOCATION_SRAM)
uncorrected, volatile = NVML_MEMORY_ERROR_TYPE_UNCORRECTED, NVML_VOLATILE_ECC
where = [nvmlDeviceGetMemoryErrorCounter(h, uncorrected, volatile, place) for place in places]
fields = [v.value.ullVal for v in nvmlDeviceGetFieldValues(h, [
    NVML_FI_DEV_ECC_SBE_VOL_TOTAL, NVML_FI_DEV_ECC_DBE_VOL_TOTAL, NVML_FI_DEV_ECC_DBE_AGG_DEV])]
answer = [total, where, fields, nvmlDeviceGetEccMode(h)]
"""
    assert ask(node, code) == [[0] * 4, [0, 0], [0] * 3, [1, 1]]
    node.faults.ecc(0, corrected=3)
    node.faults.ecc(0, corrected=1, uncorrected=2)
    node.faults.ecc(0, uncorrected=1, sram=True)
    assert ask(node, code) == [[4, 4, 3, 3], [2, 1], [4, 3, 2], [1, 1]]
    node.faults.restore(0)
    assert ask(node, code)[0] == [0, 4, 0, 3]


def test_row_remapping_exists_from_ampere_on(make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()[0]
answer = code(nvmlDeviceGetRemappedRows, h)
if answer == 0:
    info = c_nvmlRemappedRowsInfo_v2_t()
    from ctypes import byref
    nvmlDeviceGetRemappedRows_v2(h, byref(info))
    answer = [nvmlDeviceGetRemappedRows(h), info.bPending, nvmlDeviceGetRowRemapperHistogram(h).max,
              code(nvmlDeviceGetRetiredPagesPendingStatus, h)]
"""
    node = make_node("h100x8")
    assert ask(node, code) == [[0, 0, 0, 0], 0, 640, UNSUPPORTED]
    node.faults.remap_pending(0, rows=2)
    assert ask(node, code)[:2] == [[0, 2, 1, 0], 1]
    node.faults.remap_failure(0)
    assert ask(node, code)[0] == [0, 2, 1, 1]
    volta = make_node("v100x4", name="volta")
    assert ask(volta, code) == UNSUPPORTED
    with pytest.raises(SimError, match="before Ampere"):
        volta.faults.remap_pending(0)


def test_pages_are_retired_before_ampere(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("v100x4")
    code = """
h = handles()[0]
answer = [nvmlDeviceGetRetiredPagesPendingStatus(h),
          len(nvmlDeviceGetRetiredPages(h, NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR))]
"""
    assert ask(node, code) == [0, 0]
    node.set({"gpu.0.retired.pending": 1, "gpu.0.retired.dbe": 3})
    assert ask(node, code) == [1, 3]


@pytest.mark.parametrize(("driver", "before"), [(535, UNSUPPORTED), (570, [0]), (615, [0])])
def test_the_recovery_action_is_a_field_from_driver_565_on(
    driver: int, before: object, make_node: MakeNode, ask: Ask
) -> None:
    node = make_node("a10x4", driver=driver)
    assert ask(node, RECOVERY) == before
    node.faults.recovery_action(0, "DRAIN_AND_RESET")
    assert ask(node, RECOVERY) == (before if driver == 535 else [4])
    node.faults.recovery_action(0, 0)
    assert ask(node, RECOVERY) == before


def test_an_unknown_field_says_so_and_does_not_spoil_the_others(
    make_node: MakeNode, ask: Ask
) -> None:
    code = """
values = nvmlDeviceGetFieldValues(handles()[0], [9999, NVML_FI_DEV_POWER_INSTANT])
answer = [values[0].nvmlReturn, values[1].nvmlReturn, values[1].value.uiVal]
"""
    assert ask(make_node("t4x2"), code) == [UNSUPPORTED, 0, 10_000]


def test_the_texts_of_errors_are_nvmls(make_node: MakeNode, ask: Ask) -> None:
    code = "answer = [nvmlErrorString(c) for c in (0, 6, 10, 15, 12345)]"
    texts = ask(make_node("t4x2"), code)
    assert texts == ["Success", "Not Found", "Timeout", "GPU is lost", "Unknown Error"]


@pytest.mark.parametrize("call", ["nvmlDeviceGetUUID", "nvmlDeviceGetMinorNumber"])
def test_one_call_can_fail_for_one_gpu(call: str, make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = f"answer = [code({call}, h) for h in handles()]"
    node.faults.call(1, call, "UNKNOWN")
    assert ask(node, code) == [0, pynvml.NVML_ERROR_UNKNOWN]
    node.faults.call(1, call, None)
    assert ask(node, code) == [0, 0]
