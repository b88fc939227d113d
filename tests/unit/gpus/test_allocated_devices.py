"""Files that tell a nested node its GPUs, as they are found on a disk."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuslice.gpus.allocated_devices import AllotmentUnreadable, read_allotment
from gpuslice.inject.nested import gpu_env

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"


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
