"""Several processes use one simulated driver at the same time."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from gpuslice_sim.node import create

from .conftest import PRELUDE, Ask, MakeNode


def test_a_compute_mode_set_by_one_process_is_seen_by_others(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = "answer = [nvmlDeviceGetComputeMode(h) for h in handles()]"
    assert ask(node, code) == [0, 0]
    exclusive = pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    setting = f"answer = code(nvmlDeviceSetComputeMode, handles()[1], {exclusive})"
    assert ask(node, setting) == 0
    assert ask(node, code) == [0, exclusive]
    assert [gpu.compute_mode for gpu in node.gpus()] == [0, exclusive]


def test_the_compute_mode_that_was_removed_is_invalid(make_node: MakeNode, ask: Ask) -> None:
    code = "answer = [code(nvmlDeviceSetComputeMode, handles()[0], mode) for mode in (1, 4)]"
    assert ask(make_node("t4x2"), code) == [pynvml.NVML_ERROR_INVALID_ARGUMENT] * 2


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_only_root_and_the_nodes_owner_may_set_modes(short_path: Path, ask: Ask) -> None:
    short_path.chmod(0o755)
    node = create(short_path / "node", "t4x2")
    code = """
h = handles()[0]
os.setuid(65534)
answer = [code(nvmlDeviceSetComputeMode, h, 3), code(nvmlDeviceSetPersistenceMode, h, 0)]
"""
    assert ask(node, code) == [pynvml.NVML_ERROR_NO_PERMISSION] * 2


def test_readers_see_whole_changes_while_the_state_changes(make_node: MakeNode) -> None:
    """Rows are written in pairs: a reader that sees half of a pair, or an older one, has failed."""
    node = make_node("a10x4")
    last = 400
    code = f"""
nvmlInit()
h = handles()
seen, calls = 0, 0
while seen < {last}:
    corrected, uncorrected, _, _ = nvmlDeviceGetRemappedRows(h[1])
    assert corrected == uncorrected >= seen, (corrected, uncorrected, seen)
    seen, calls = corrected, calls + 1
    assert [nvmlDeviceGetMinorNumber(x) for x in h] == [0, 1, 2, 3]
    used = nvmlDeviceGetMemoryInfo(h[0], version=nvmlMemory_v2).used
    assert used in (0, 1 << 20), used
print(json.dumps(calls))
"""
    readers = [
        subprocess.Popen(
            [sys.executable, "-c", PRELUDE + code],
            env={"LD_LIBRARY_PATH": str(node.lib)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    for step in range(1, last + 1):
        node.set({"gpu.1.remap.corrected": step, "gpu.1.remap.uncorrected": step})
        node.faults.add_process(0, 99, 1 << 20, invented=True)
        if step % 10 == 0:
            node.faults.remove_process(0, 99)
    for reader in readers:
        out, err = reader.communicate(timeout=180)
        assert reader.returncode == 0, err
        assert json.loads(out) > 0


def test_threads_share_the_library(make_node: MakeNode, ask: Ask) -> None:
    code = """
import threading
wrong = []
def work():
    for _ in range(200):
        nvmlInit()
        if [nvmlDeviceGetIndex(h) for h in handles()] != [0, 1]:
            wrong.append(1)
        nvmlShutdown()
threads = [threading.Thread(target=work) for _ in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
answer = [wrong, nvmlDeviceGetCount()]
"""
    assert ask(make_node("t4x2"), code) == [[], 2]


def test_a_process_that_holds_its_file_is_live_wherever_its_pid_means_nothing(
    make_node: MakeNode, ask: Ask
) -> None:
    """A lock and not the PID tells that it lives: in a container the PID is another one."""
    node = make_node("t4x2")
    gpu = node.gpus()[0]
    path = node.directory / "state" / "procs" / f"1-{gpu.uuid}"
    path.write_text(f"pid=1\ngpu={gpu.uuid}\nused=1048576\nlive=lock\n")
    code = "answer = [p.pid for p in nvmlDeviceGetComputeRunningProcesses(handles()[0])]"
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert ask(node, code) == [1]
        assert [process.pid for process in node.state.processes()] == [1]
    assert ask(node, code) == []
    assert node.state.processes() == []
