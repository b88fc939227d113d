from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.gpus.nvml import sysfs_bus_id
from gpuslice.gpus.pci import gpu_functions, numa_node


def function(sysfs: Path, address: str, driver: str = "nvidia", **files: str) -> Path:
    path = sysfs / "bus" / "pci" / "devices" / address
    path.mkdir(parents=True)
    for name, text in ({"vendor": "0x10de", "class": "0x030200"} | files).items():
        (path / name).write_text(f"{text}\n")
    if driver:
        (path / "driver").symlink_to(f"../../drivers/{driver}")
    return path


def test_only_display_functions_of_nvidia_are_gpus(tmp_path: Path) -> None:
    function(tmp_path, "0000:3b:00.0")
    function(tmp_path, "0000:5e:00.0", driver="vfio-pci", **{"class": "0x030000"})
    function(tmp_path, "0000:af:00.0", driver="")
    function(tmp_path, "0000:3b:00.1", driver="snd_hda_intel", **{"class": "0x040300"})
    function(tmp_path, "0000:c4:00.0", driver="nvidia-nvswitch", **{"class": "0x068000"})
    function(tmp_path, "0000:02:00.0", driver="ast", vendor="0x1a03")
    assert gpu_functions(tmp_path) == {
        "0000:3b:00.0": "nvidia",
        "0000:5e:00.0": "vfio-pci",
        "0000:af:00.0": "",
    }


def test_a_machine_without_pci_has_no_functions(tmp_path: Path) -> None:
    assert gpu_functions(tmp_path) == {}


def test_a_function_that_is_removed_while_it_is_read_is_not_a_gpu(tmp_path: Path) -> None:
    (function(tmp_path, "0000:3b:00.0") / "class").unlink()
    assert gpu_functions(tmp_path) == {}


@pytest.mark.parametrize(("text", "node"), [("1", 1), ("0", 0), ("-1", None), ("", None)])
def test_a_negative_numa_node_is_none(text: str, node: int | None, tmp_path: Path) -> None:
    function(tmp_path, "0000:3b:00.0", numa_node=text)
    assert numa_node(tmp_path, "0000:3b:00.0") == node
    assert numa_node(tmp_path, "0000:ff:00.0") is None


@pytest.mark.parametrize(
    ("nvml", "sysfs"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("0000:AF:00.0", "0000:af:00.0"),
        ("", ""),
        ("Garbage", "garbage"),
    ],
)
def test_addresses_are_written_as_the_kernel_does(nvml: str, sysfs: str) -> None:
    assert sysfs_bus_id(nvml) == sysfs
