"""Files that tell a nested node its GPUs, as they are found on a disk."""

from __future__ import annotations

import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuslice.agent.nested_files import (
    AllotmentNotKept,
    AllotmentUnreadable,
    keep_allotment,
    read_allotment,
)
from gpuslice.inject.nested import gpu_env

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"


def test_what_is_kept_is_read_back_by_anyone(tmp_path: Path) -> None:
    path = Path(keep_allotment(tmp_path / "a" / "b", gpu_env([A, B])))
    assert read_allotment(path, None) == (A, B)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [path] == list(path.parent.iterdir())


def test_equal_lists_share_a_file_and_different_ones_do_not(tmp_path: Path) -> None:
    first = keep_allotment(tmp_path, gpu_env([A]))
    written = Path(first).stat().st_ino
    assert keep_allotment(tmp_path, gpu_env([A])) == first
    assert Path(first).stat().st_ino == written
    assert keep_allotment(tmp_path, gpu_env([B])) != first


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    path = Path(keep_allotment(tmp_path, gpu_env([A])))
    path.write_text("NVIDIA_ALLOC")
    path.with_name(f".{path.name}.tmp").write_text("left by a crash")
    assert keep_allotment(tmp_path, gpu_env([A])) == str(path)
    assert read_allotment(path, None) == (A,)
    assert [path] == list(tmp_path.iterdir())


def test_many_at_once_keep_a_whole_file(tmp_path: Path) -> None:
    lists = [gpu_env([A]), gpu_env([B]), gpu_env([A, B])] * 20
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda text: keep_allotment(tmp_path, text), lists))
    for path, text in zip(paths, lists, strict=True):
        assert Path(path).read_text() == text


def test_a_file_that_cannot_be_kept_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(AllotmentNotKept, match=r"nested directory writable.*file/gpu-"):
        keep_allotment(tmp_path / "file", gpu_env([A]))


def test_without_a_file_the_variable_counts(tmp_path: Path) -> None:
    assert read_allotment(None, f"{A},{B}") == (A, B)
    path = tmp_path / "gpu.env"
    path.write_text(gpu_env([A]))
    assert read_allotment(path, B) == (A,)
    with pytest.raises(AllotmentUnreadable, match="NVIDIA_ALLOCATED_DEVICES"):
        read_allotment(None, None)
    with pytest.raises(AllotmentUnreadable, match="neither the UUID"):
        read_allotment(None, "all")


def test_a_link_to_the_file_will_do(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(gpu_env([A]))
    (tmp_path / "gpu.env").symlink_to("real")
    assert read_allotment(tmp_path / "gpu.env", None) == (A,)


def refused(path: Path) -> str:
    with pytest.raises(AllotmentUnreadable) as caught:
        read_allotment(path, None)
    message = str(caught.value)
    assert message.startswith(f"nested-env: {str(path)!r} is not valid: ")
    return message


def test_a_missing_file_is_said_to_be_missing(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "gpu.env")
    (tmp_path / "link").symlink_to("nowhere")
    assert "No such file" in refused(tmp_path / "link")
    (tmp_path / "file").touch()
    assert "Not a directory" in refused(tmp_path / "file" / "gpu.env")
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in refused(tmp_path / "loop")


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path) -> None:
    assert "no regular file" in refused(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "no regular file" in refused(tmp_path / "pipe")
    assert "no regular file" in refused(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "cannot be read" in refused(tmp_path / "s")


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "more than 65536 bytes" in refused(path)


def test_a_file_that_is_not_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "gpu.env"
    path.write_bytes(b"NVIDIA_ALLOCATED_DEVICES=\xff\xfe")
    assert "not UTF-8 at byte 25" in refused(path)
    path.write_bytes(b"")
    assert "empty" in refused(path)
