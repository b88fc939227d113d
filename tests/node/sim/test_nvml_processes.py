"""Memory, processes and how busy a GPU is."""

from __future__ import annotations

import subprocess

import pynvml
import pytest

from gpuslice_sim.mps.launch import wait_until_gone

from .conftest import Ask, MakeNode

MIB = 1 << 20

MEMORY = """
h = handles()[0]
m, v2 = nvmlDeviceGetMemoryInfo(h), nvmlDeviceGetMemoryInfo(h, version=nvmlMemory_v2)
answer = [[m.total, m.free, m.used], [v2.total, v2.reserved, v2.free, v2.used]]
"""
LISTS = """
h = handles()[0]
answer = [
    sorted(p.pid for p in get(h)) for get in (
        nvmlDeviceGetComputeRunningProcesses, nvmlDeviceGetMPSComputeRunningProcesses,
        nvmlDeviceGetGraphicsRunningProcesses)
]
"""


def test_used_memory_is_the_reserve_and_what_processes_use(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    gpu = node.gpus()[0]
    total, reserved = gpu.memory_total_bytes, gpu.memory_reserved_bytes
    assert ask(node, MEMORY) == [
        [total, total - reserved, reserved],
        [total, reserved, total - reserved, 0],
    ]
    node.faults.add_process(0, 4711, 3 << 30, invented=True)
    node.faults.add_process(0, 4712, 1 << 30, invented=True)
    node.faults.add_process(1, 4713, 1 << 30, invented=True)
    used = 4 << 30
    assert ask(node, MEMORY) == [
        [total, total - reserved - used, reserved + used],
        [total, reserved, total - reserved - used, used],
    ]


def test_a_process_that_is_gone_uses_nothing(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    process = subprocess.Popen(["sleep", "600"])
    node.faults.add_process(0, process.pid, MIB)
    assert ask(node, LISTS)[0] == [process.pid]
    process.kill()
    # Not yet waited for: a zombie has given its memory back all the same.
    wait_until_gone(process.pid)
    assert ask(node, LISTS)[0] == []
    assert node.state.processes() == []
    process.wait()


def test_processes_are_listed_by_kind(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    for pid, kind in ((11, "C"), (12, "M+C"), (13, "G")):
        node.faults.add_process(0, pid, MIB, kind=kind, invented=True)
    assert ask(node, LISTS) == [[11, 12], [12], [13]]
    node.faults.remove_process(0, 12)
    assert ask(node, LISTS) == [[11], [], [13]]


def test_a_process_of_a_whole_gpu_has_no_instance(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    node.faults.add_process(0, 11, 5 * MIB, invented=True)
    code = """
from ctypes import c_uint, byref
(p,) = nvmlDeviceGetComputeRunningProcesses(handles()[0])
(q,) = nvmlDeviceGetComputeRunningProcesses_v2(handles()[0])
answer = [p.pid, p.usedGpuMemory, p.gpuInstanceId, p.computeInstanceId, q.usedGpuMemory]
"""
    assert ask(node, code) == [11, 5 * MIB, 0xFFFFFFFF, 0xFFFFFFFF, 5 * MIB]


def test_a_list_that_does_not_fit_says_how_long_it_is(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    for pid in range(1, 41):
        node.faults.add_process(0, pid, MIB, invented=True)
    code = """
from ctypes import CDLL, c_uint, byref
lib = CDLL("libnvidia-ml.so.1")
h, n = handles()[0], c_uint(39)
room = (c_nvmlProcessInfo_v3_t * 40)()
first = lib.nvmlDeviceGetComputeRunningProcesses_v3(h, byref(n), room), n.value
answer = [first, (lib.nvmlDeviceGetComputeRunningProcesses_v3(h, byref(n), room), n.value),
          [p.pid for p in room] == list(range(1, 41))]
"""
    assert ask(node, code) == [[pynvml.NVML_ERROR_INSUFFICIENT_SIZE, 40], [0, 40], True]


def test_utilization_follows_the_processes_until_it_is_set(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = """
u = nvmlDeviceGetUtilizationRates(handles()[0])
answer = [u.gpu, u.memory]
"""
    assert ask(node, code) == [0, 0]
    node.faults.add_process(0, 11, MIB, sm_percent=60, memory_percent=5, invented=True)
    node.faults.add_process(0, 12, MIB, sm_percent=70, memory_percent=6, invented=True)
    assert ask(node, code) == [100, 11]
    node.faults.utilization(0, 42, 7)
    assert ask(node, code) == [42, 7]


def test_process_utilization_is_not_found_when_nothing_runs(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = """
h = handles()[0]
try:
    answer = [[(s.pid, s.smUtil, s.memUtil) for s in get(h, 0)] for get in (
        nvmlDeviceGetProcessUtilization, nvmlDeviceGetProcessesUtilizationInfo)]
except NVMLError as error:
    answer = error.value
"""
    assert ask(node, code) == pynvml.NVML_ERROR_NOT_FOUND
    node.faults.add_process(0, 11, MIB, sm_percent=60, memory_percent=5, invented=True)
    assert ask(node, code) == [[[11, 60, 5]], [[11, 60, 5]]]


@pytest.mark.parametrize(("driver", "expected"), [(570, 3), (590, 3), (615, [1 << 30, 2 << 30, 0])])
def test_memory_limits_of_a_cgroup_need_driver_615(
    driver: int, expected: object, make_node: MakeNode, ask: Ask
) -> None:
    code = """
h = handles()[0]
wanted = c_nvmlSetMemoryLimits_v1_t(b"/sys/fs/cgroup/pod/leaf", 1 << 30, 2 << 30)
got = c_nvmlGetMemoryLimits_v1_t(b"/pod/leaf")
answer = code(nvmlDeviceSetMemoryLimits_v1, h, wanted)
if answer == 0:
    nvmlDeviceGetMemoryLimits_v1(h, got)
    answer = [got.softLimit, got.hardLimit, got.currentUsed]
"""
    assert ask(make_node("t4x2", driver=driver), code) == expected


def test_the_use_of_a_cgroup_counts_all_its_processes(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2", driver=615)
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
own = next(l for l in Path("/proc/self/cgroup").read_text().splitlines() if l.startswith("0::"))
SimNode.open(Path({str(node.directory)!r})).faults.add_process(0, os.getpid(), 77)
answer = []
for path in (own[3:], "/elsewhere"):
    got = c_nvmlGetMemoryLimits_v1_t(path.encode())
    nvmlDeviceGetMemoryLimits_v1(handles()[0], got)
    answer.append([got.softLimit, got.hardLimit, got.currentUsed])
"""
    nothing = (1 << 64) - 1
    assert ask(node, code) == [[0, nothing, 77], [0, nothing, 0]]
