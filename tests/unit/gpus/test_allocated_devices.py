"""The file that lists the GPUs of a nested node."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpuslice.gpus.allocated_devices import (
    AllocatedDevicesUnreadable,
    list_file,
    read_allocated_devices,
)
from gpuslice.inject.nested import gpu_env

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"


def test_the_variable_is_used_if_there_is_no_file(tmp_path: Path) -> None:
    assert read_allocated_devices(None, f"{A},{B}") == (A, B)
    path = tmp_path / "gpu.env"
    path.write_text(gpu_env([A]))
    assert read_allocated_devices(path, B) == (A,)
    with pytest.raises(AllocatedDevicesUnreadable, match="NVIDIA_ALLOCATED_DEVICES"):
        read_allocated_devices(None, None)
    with pytest.raises(AllocatedDevicesUnreadable, match="neither the UUID"):
        read_allocated_devices(None, "all")


def test_the_mounted_file_takes_precedence_over_one_of_the_container(tmp_path: Path) -> None:
    mounted, other = tmp_path / "mounted.env", tmp_path / "other.env"
    assert list_file(Path("/gpu.env"), mounted) == Path("/gpu.env")
    mounted.write_text(gpu_env([A]))
    assert list_file(Path("/gpu.env"), mounted) == mounted
    assert list_file(other, mounted) == other


def test_a_link_to_the_file_is_followed(tmp_path: Path) -> None:
    (tmp_path / "real").write_text(gpu_env([A]))
    (tmp_path / "gpu.env").symlink_to("real")
    assert read_allocated_devices(tmp_path / "gpu.env", None) == (A,)


def rejection(path: Path) -> str:
    with pytest.raises(AllocatedDevicesUnreadable) as caught:
        read_allocated_devices(path, None)
    message = str(caught.value)
    assert message.startswith(f"nested-env: {str(path)!r} is not valid: ")
    return message


def test_the_error_names_the_reason_why_a_file_is_missing(tmp_path: Path) -> None:
    assert "No such file" in rejection(tmp_path / "gpu.env")
    (tmp_path / "link").symlink_to("nowhere")
    assert "No such file" in rejection(tmp_path / "link")
    (tmp_path / "file").touch()
    assert "Not a directory" in rejection(tmp_path / "file" / "gpu.env")
    (tmp_path / "loop").symlink_to("loop")
    assert "cannot be read" in rejection(tmp_path / "loop")


def test_anything_but_a_regular_file_is_rejected_without_blocking(tmp_path: Path) -> None:
    assert "not a regular file" in rejection(tmp_path)
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in rejection(tmp_path / "pipe")
    assert "not a regular file" in rejection(Path("/dev/zero"))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        assert "not a regular file" in rejection(tmp_path / "s")


def test_a_huge_file_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.truncate(1 << 40)
    assert "more than 65536 bytes" in rejection(path)


def test_a_file_that_is_not_text_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "gpu.env"
    path.write_bytes(b"NVIDIA_ALLOCATED_DEVICES=\xff\xfe")
    assert "not UTF-8 at byte 25" in rejection(path)
    path.write_bytes(b"")
    assert "empty" in rejection(path)
