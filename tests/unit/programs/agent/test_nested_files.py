"""Files that tell a nested node its GPUs, as they are left on a disk."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpuslice.gpus.allocated_devices import read_allocated_devices
from gpuslice.inject.nested import gpu_env
from gpuslice.programs.agent.nested_files import (
    NestedFileError,
    check_nested_directory,
    remove_nested_files,
    unused_nested_files,
    write_nested_file,
)

A = "GPU-a5ff0fbb-a150-5524-8c2e-d954b2d4f1b7"
B = "GPU-0c9f6d2e-8f0a-5f64-9d9e-0f4c2c1b7a11"


def test_what_is_kept_is_read_back_by_anyone(tmp_path: Path) -> None:
    path = Path(write_nested_file(tmp_path / "a" / "b", gpu_env([A, B])))
    assert read_allocated_devices(path, None) == (A, B)
    assert path.stat().st_mode & 0o777 == 0o644
    assert [path] == list(path.parent.iterdir())


def test_equal_lists_share_a_file_and_different_ones_do_not(tmp_path: Path) -> None:
    first = write_nested_file(tmp_path, gpu_env([A]))
    written = Path(first).stat().st_ino
    assert write_nested_file(tmp_path, gpu_env([A])) == first
    assert Path(first).stat().st_ino == written
    assert write_nested_file(tmp_path, gpu_env([B])) != first


def test_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    path = Path(write_nested_file(tmp_path, gpu_env([A])))
    path.write_text("NVIDIA_ALLOC")
    path.with_name(f".{path.name}.tmp").write_text("left by a crash")
    assert write_nested_file(tmp_path, gpu_env([A])) == str(path)
    assert read_allocated_devices(path, None) == (A,)
    assert [path] == list(tmp_path.iterdir())


def test_many_at_once_keep_a_whole_file(tmp_path: Path) -> None:
    lists = [gpu_env([A]), gpu_env([B]), gpu_env([A, B])] * 20
    with ThreadPoolExecutor(8) as pool:
        paths = list(pool.map(lambda text: write_nested_file(tmp_path, text), lists))
    for path, text in zip(paths, lists, strict=True):
        assert Path(path).read_text() == text


def test_a_file_that_cannot_be_kept_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for directory in (tmp_path / "file", tmp_path / "file" / "nested"):
        because = f"^nested-dir: '{directory}' is not valid: .*(Not a directory|File exists).*mount"
        with pytest.raises(NestedFileError, match=because):
            check_nested_directory(directory)
        with pytest.raises(NestedFileError, match=because):
            write_nested_file(directory, gpu_env([A]))


def test_a_directory_is_made_ready_and_left_empty(tmp_path: Path) -> None:
    directory = tmp_path / "a" / "nested"
    check_nested_directory(directory)
    check_nested_directory(directory)
    assert list(directory.iterdir()) == []


def unused(directory: Path, *used: str) -> list[str]:
    return [str(path) for path in unused_nested_files(directory, "\n".join(used), 60)]


def age(path: str, seconds: float = 3600) -> None:
    then = time.time() - seconds
    os.utime(path, (then, then))


def test_a_file_is_unused_if_it_is_old_and_none_of_its_gpus_is_in_use(tmp_path: Path) -> None:
    path = write_nested_file(tmp_path, gpu_env([A, B]))
    assert unused(tmp_path) == []  # its container may still wait for its image
    age(path)
    assert unused(tmp_path) == [path]
    assert unused(tmp_path, f"{B}::3") == []
    assert unused(tmp_path, "GPU-of-another-container") == [path]
    Path(path).write_text("damaged")
    age(path)
    assert unused(tmp_path) == []


def test_a_file_that_allocate_needs_again_is_not_removed(tmp_path: Path) -> None:
    path = write_nested_file(tmp_path, gpu_env([A]))
    age(path)
    found = unused_nested_files(tmp_path, "", 60)
    assert write_nested_file(tmp_path, gpu_env([A])) == path
    assert remove_nested_files(found, 60) == []
    assert read_allocated_devices(Path(path), None) == (A,)
    age(path)
    assert remove_nested_files(found, 60) == [Path(path)]
    assert list(tmp_path.iterdir()) == []
    assert write_nested_file(tmp_path, gpu_env([A])) == path
    assert read_allocated_devices(Path(path), None) == (A,)
