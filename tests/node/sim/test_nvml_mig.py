"""MIG devices as NVIDIA's own programs walk through them."""

from __future__ import annotations

import pynvml
import pytest

from gpuslice_sim.errors import SimError

from .conftest import Ask, MakeNode

WALK = """
answer = []
for h in handles():
    devices = []
    for i in range(nvmlDeviceGetMaxMigDeviceCount(h)):
        try:
            m = nvmlDeviceGetMigDeviceHandleByIndex(h, i)
        except NVMLError_NotFound:
            continue
        a = nvmlDeviceGetAttributes_v2(m)
        devices.append({
            "name": nvmlDeviceGetName(m), "uuid": nvmlDeviceGetUUID(m),
            "gi": nvmlDeviceGetGpuInstanceId(m), "ci": nvmlDeviceGetComputeInstanceId(m),
            "sms": a.multiprocessorCount, "mb": a.memorySizeMB,
            "slices": [a.gpuInstanceSliceCount, a.computeInstanceSliceCount],
            "total": nvmlDeviceGetMemoryInfo(m).total,
            "is_mig": nvmlDeviceIsMigDeviceHandle(m).value,
            "parent": nvmlDeviceGetIndex(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)),
        })
    answer.append(devices)
"""


def test_a_layout_of_different_sizes_is_shown_as_it_is(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("a100x2-mig-mixed")
    first, second = ask(node, WALK)
    name = "NVIDIA A100-SXM4-40GB MIG "
    assert [(d["name"], d["sms"], d["mb"], d["slices"]) for d in first] == [
        (name + "3g.20gb", 42, 20096, [3, 3]),
        (name + "2g.10gb", 28, 9984, [2, 2]),
        (name + "1g.5gb", 14, 4864, [1, 1]),
        (name + "1g.5gb", 14, 4864, [1, 1]),
    ]
    assert [(d["gi"], d["ci"]) for d in first] == [(1, 0), (3, 0), (7, 0), (8, 0)]
    assert all(d["is_mig"] == 1 and d["parent"] == 0 for d in first)
    assert all(d["total"] == d["mb"] << 20 for d in first)
    assert [d["uuid"] for d in first] == [mig.uuid for mig in node.gpus()[0].mig]
    assert len({d["uuid"] for d in first}) == 4
    assert second == []


def test_seven_equal_devices_fit_on_a_gpu(make_node: MakeNode, ask: Ask) -> None:
    gpus = ask(make_node("a100x2-mig-single"), WALK)
    assert [len(devices) for devices in gpus] == [7, 7]
    assert {d["sms"] for devices in gpus for d in devices} == {14}
    assert len({d["uuid"] for devices in gpus for d in devices}) == 14


@pytest.mark.parametrize(
    ("profile", "expected"),
    [("t4x2", 3), ("l40sx4", 3), ("a100-40x8", [0, 0]), ("a100x2-mig-mixed", [1, 1])],
)
def test_mig_mode(profile: str, expected: object, make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()[0]
answer = code(nvmlDeviceGetMigMode, h) or nvmlDeviceGetMigMode(h)
"""
    assert ask(make_node(profile), code) == expected


def test_a_gpu_without_mig_has_no_mig_devices(make_node: MakeNode, ask: Ask) -> None:
    code = """
h = handles()[0]
answer = [nvmlDeviceGetMaxMigDeviceCount(h), code(nvmlDeviceGetMigDeviceHandleByIndex, h, 0),
          nvmlDeviceIsMigDeviceHandle(h).value, code(nvmlDeviceGetGpuInstanceId, h),
          code(nvmlDeviceGetAttributes_v2, h)]
"""
    unsupported, missing = pynvml.NVML_ERROR_NOT_SUPPORTED, pynvml.NVML_ERROR_NOT_FOUND
    assert ask(make_node("t4x2"), code) == [0, unsupported, 0, unsupported, unsupported]
    assert ask(make_node("h100x8", name="h"), code) == [0, missing, 0, unsupported, unsupported]


def test_instances_and_profiles_agree_with_the_devices(make_node: MakeNode, ask: Ask) -> None:
    """The walk of NVIDIA's go-nvlib from a MIG device to the name of its profile."""
    code = """
parent = handles()[0]
answer = []
for i in range(4):
    m = nvmlDeviceGetMigDeviceHandleByIndex(parent, i)
    gi = nvmlDeviceGetGpuInstanceById(parent, nvmlDeviceGetGpuInstanceId(m))
    ci = nvmlGpuInstanceGetComputeInstanceById(gi, nvmlDeviceGetComputeInstanceId(m))
    gi_info, ci_info = nvmlGpuInstanceGetInfo(gi), nvmlComputeInstanceGetInfo(ci)
    names = []
    for number in range(NVML_GPU_INSTANCE_PROFILE_COUNT):
        try:
            p = nvmlDeviceGetGpuInstanceProfileInfo(parent, number, version=2)
        except NVMLError_NotSupported:
            continue
        if p.id != gi_info.profileId:
            continue
        for c in range(NVML_COMPUTE_INSTANCE_PROFILE_COUNT):
            try:
                q = nvmlGpuInstanceGetComputeInstanceProfileInfo(gi, c, 0)
            except NVMLError_NotSupported:
                continue
            if q.id == ci_info.profileId:
                names.append([p.name.decode() if isinstance(p.name, bytes) else p.name,
                              q.sliceCount, q.multiprocessorCount])
    answer.append([gi_info.placement.start, gi_info.placement.size, names])
"""
    assert ask(make_node("a100x2-mig-mixed"), code) == [
        [4, 4, [["MIG 3g.20gb", 3, 42]]],
        [0, 2, [["MIG 2g.10gb", 2, 28]]],
        [2, 1, [["MIG 1g.5gb", 1, 14]]],
        [3, 1, [["MIG 1g.5gb", 1, 14]]],
    ]


def test_a_new_layout_replaces_devices_under_running_programs(
    make_node: MakeNode, ask: Ask
) -> None:
    node = make_node("a100x2-mig-mixed")
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
gpu = handles()[0]
old = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
node.faults.mig(0, ["7g.40gb"])
new = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
changed = [code(nvmlDeviceGetUUID, old), nvmlDeviceGetAttributes_v2(new).multiprocessorCount,
           code(nvmlDeviceGetMigDeviceHandleByIndex, gpu, 1)]
node.faults.mig(0, [])
answer = [*changed, nvmlDeviceGetMigMode(gpu), nvmlDeviceGetMaxMigDeviceCount(gpu)]
"""
    assert ask(node, code) == [2, 98, pynvml.NVML_ERROR_NOT_FOUND, [0, 0], 0]


@pytest.mark.parametrize(
    "layout", [["4g.20gb", "4g.20gb"], ["3g.20gb", "3g.20gb", "1g.5gb"], ["1g.5gb"] * 8]
)
def test_a_layout_that_the_hardware_refuses_is_refused(
    layout: list[str], make_node: MakeNode
) -> None:
    node = make_node("a100-40x8")
    with pytest.raises(SimError, match="does not fit"):
        node.faults.mig(0, layout)
    assert node.gpus()[0].mig == ()


def test_an_unknown_mig_profile_is_named_with_the_known_ones(make_node: MakeNode) -> None:
    with pytest.raises(SimError, match=r"'9g\.99gb'.*3g\.20gb"):
        make_node("a100-40x8").faults.mig(0, ["9g.99gb"])


def test_processes_belong_to_their_mig_device(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("a100x2-mig-mixed")
    node.faults.add_process(0, 21, 1 << 30, gi=1, ci=0, invented=True)
    node.faults.add_process(0, 22, 1 << 20, gi=3, ci=0, invented=True)
    code = """
gpu = handles()[0]
migs = [nvmlDeviceGetMigDeviceHandleByIndex(gpu, i) for i in range(3)]
answer = [[(p.pid, p.gpuInstanceId) for p in nvmlDeviceGetComputeRunningProcesses(h)]
          for h in (gpu, *migs)] + [nvmlDeviceGetMemoryInfo(m).used for m in migs]
"""
    pids = [[[21, 1], [22, 3]], [[21, 1]], [[22, 3]], []]
    assert ask(node, code) == [*pids, 1 << 30, 1 << 20, 0]


def test_what_a_gpu_in_mig_mode_does_not_offer(make_node: MakeNode, ask: Ask) -> None:
    code = """
gpu = handles()[0]
mig = nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
answer = [code(nvmlDeviceGetUtilizationRates, gpu), code(nvmlDeviceSetComputeMode, gpu, 3),
          code(nvmlDeviceSetComputeMode, mig, 3), code(nvmlDeviceGetMinorNumber, mig)]
"""
    assert ask(make_node("a100x2-mig-mixed"), code) == [pynvml.NVML_ERROR_NOT_SUPPORTED] * 4


def test_placements_and_what_is_still_free(make_node: MakeNode, ask: Ask) -> None:
    code = """
from ctypes import CDLL, byref, c_uint
lib = CDLL("libnvidia-ml.so.1")
gpu, n = handles()[0], c_uint()
starts = (c_nvmlGpuInstancePlacement_t * 8)()
answer = []
for profile in (19, 14, 9):
    n.value = 8
    lib.nvmlDeviceGetGpuInstancePossiblePlacements_v2(gpu, profile, starts, byref(n))
    possible = [[s.start, s.size] for s in starts[:n.value]]
    lib.nvmlDeviceGetGpuInstanceRemainingCapacity(gpu, profile, byref(n))
    answer.append([possible, n.value])
"""
    node = make_node("a100-40x8")
    node.faults.mig(0, ["3g.20gb"])
    ones = [[start, 1] for start in range(7)]
    assert ask(node, code) == [
        [ones, 4],
        [[[0, 2], [2, 2], [4, 2]], 2],
        [[[0, 4], [4, 4]], 1],
    ]
