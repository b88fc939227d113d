"""What the kernel knows about a process."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.process_files import (
    ContainedProcess,
    ProcessId,
    read_process,
    read_process_id,
    sees_only_itself,
)

UID, ID = "0f5b8c9a-1d2e-4f3a-8b7c-6d5e4f3a2b1c", "4e1b" * 16


def proc(
    directory: Path, pid: int, *, state: str = "S", started: int = 77, name: str = "a"
) -> Path:
    place = directory / str(pid)
    place.mkdir(exist_ok=True)
    numbers = " ".join(["0"] * 18)
    (place / "stat").write_text(f"{pid} ({name}) {state} {numbers} {started} 0 0\n")
    (place / "cgroup").write_text(f"0::/kubepods/burstable/pod{UID}/{ID}\n")
    return place


def test_a_process_has_its_start_and_its_container(tmp_path: Path) -> None:
    proc(tmp_path, 12)
    expected = ContainedProcess(ProcessId(12, 77), ContainerId(UID, ID))
    assert read_process(12, tmp_path) == expected


def test_the_name_of_a_program_cannot_pose_as_other_fields(tmp_path: Path) -> None:
    proc(tmp_path, 12, name="a) S 1 1 1 1 (b")
    assert read_process_id(12, tmp_path) == ProcessId(12, 77)


@pytest.mark.parametrize("state", ["Z", "X"])
def test_a_process_that_has_ended_is_none(tmp_path: Path, state: str) -> None:
    proc(tmp_path, 12, state=state)
    assert read_process(12, tmp_path) is None
    assert read_process(13, tmp_path) is None


def test_a_process_outside_of_containers_is_none(tmp_path: Path) -> None:
    (proc(tmp_path, 12) / "cgroup").write_text("0::/system.slice/nvidia-mps.service\n")
    assert read_process_id(12, tmp_path) is not None
    assert read_process(12, tmp_path) is None


def test_this_process_is_read_from_the_kernel() -> None:
    found = read_process_id(os.getpid())
    assert found is not None
    assert found.pid == os.getpid()
    assert found.started_ticks > 0


@pytest.mark.parametrize(
    ("own_pid", "first", "expected"),
    [(1, "gpuslice", True), (7, "pause", True), (7, "systemd", False)],
)
def test_a_container_with_process_ids_of_its_own_is_recognised(
    tmp_path: Path, own_pid: int, first: str, expected: bool
) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "comm").write_text(f"{first}\n")
    assert sees_only_itself(tmp_path, own_pid) is expected
