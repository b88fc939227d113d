from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.gpus.library import find_nvml


def put(root: Path, path: str) -> Path:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.touch()
    return file


@pytest.mark.parametrize(
    "directory",
    [
        "usr/lib64",
        "usr/lib/x86_64-linux-gnu",
        "usr/lib/aarch64-linux-gnu",
        "lib64",
        "lib/x86_64-linux-gnu",
        "lib/aarch64-linux-gnu",
        "usr/lib/x86_64-linux-gnu/nvidia/current",
        "usr/lib",
    ],
)
def test_the_library_is_found_where_distributions_install_it(
    directory: str, tmp_path: Path
) -> None:
    file = put(tmp_path, f"{directory}/libnvidia-ml.so.570.1")
    (file.parent / "libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.570.1")
    assert find_nvml(tmp_path) == file


def test_absolute_links_stay_within_the_driver_root(tmp_path: Path) -> None:
    file = put(tmp_path, "usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    link = put(tmp_path, "etc/alternatives/here").parent / "nvml"
    link.symlink_to("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    (tmp_path / "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").symlink_to("/etc/alternatives/nvml")
    assert find_nvml(tmp_path) == file


def test_a_linked_directory_is_followed(tmp_path: Path) -> None:
    file = put(tmp_path, "opt/driver/libnvidia-ml.so.1")
    (tmp_path / "lib64").symlink_to("opt/driver")
    assert find_nvml(tmp_path) == file


def test_a_link_that_refers_to_itself_is_no_library(tmp_path: Path) -> None:
    (tmp_path / "usr" / "lib64").mkdir(parents=True)
    (tmp_path / "usr/lib64/libnvidia-ml.so.1").symlink_to("libnvidia-ml.so.1")
    assert find_nvml(tmp_path) is None


def test_without_a_driver_root_the_library_is_loaded_by_name(tmp_path: Path) -> None:
    assert find_nvml(tmp_path / "absent") is None
    assert find_nvml(tmp_path) is None
    assert find_nvml(Path("/")) is None
