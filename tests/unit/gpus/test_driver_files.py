"""The files of a driver, in the directories of all distributions."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.files.rooted_tree import Tree
from gpuslice.gpus.device_nodes import Link, char_devices, drm_nodes
from gpuslice.gpus.driver_files import find_driver_files, seen_dev_root, seen_driver_root
from tests.unit.gpus.elf_files import library

VERSION = "570.124.06"


def put(tree: Tree, path: str, content: bytes = b"", mode: int = 0o644) -> None:
    tree.at(path).parent.mkdir(parents=True, exist_ok=True)
    tree.at(path).write_bytes(content)
    tree.at(path).chmod(mode)


def put_library(tree: Tree, directory: str, stem: str, *links: str) -> None:
    put(tree, f"{directory}/{stem}.{VERSION}", library(f"{stem}.1"))
    for link in links:
        tree.at(f"{directory}/{link}").symlink_to(f"{stem}.{VERSION}")


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path)


@pytest.mark.parametrize(
    "directory", ["/usr/lib64", "/usr/lib/x86_64-linux-gnu", "/lib/aarch64-linux-gnu", "/usr/lib"]
)
def test_libraries_are_found_by_the_version_of_the_driver(tree: Tree, directory: str) -> None:
    put_library(tree, directory, "libcuda.so", "libcuda.so.1", "libcuda.so")
    put_library(tree, directory, "libnvidia-ml.so", "libnvidia-ml.so.1")
    put_library(tree, f"{directory}/vdpau", "libvdpau_nvidia.so")
    put(tree, f"{directory}/libcuda.so.535.1", library("libcuda.so.1"))
    found = find_driver_files(tree, VERSION)
    assert found.library_directory == directory
    links = {entry.path: entry.links for entry in found.libraries}
    assert links == {
        f"{directory}/libcuda.so.{VERSION}": (
            Link("libcuda.so.1", f"{directory}/libcuda.so"),
            Link(f"libcuda.so.{VERSION}", f"{directory}/libcuda.so.1"),
        ),
        f"{directory}/libnvidia-ml.so.{VERSION}": (
            Link(f"libnvidia-ml.so.{VERSION}", f"{directory}/libnvidia-ml.so.1"),
        ),
        f"{directory}/vdpau/libvdpau_nvidia.so.{VERSION}": (),
    }


def test_a_root_without_this_driver_has_none_of_it(tree: Tree) -> None:
    put(tree, "/usr/lib64/libcuda.so.535.1", library("libcuda.so.1"))
    found = find_driver_files(tree, VERSION)
    assert found.library_directory is None
    assert not found.libraries


def test_links_that_programs_expect_come_with_their_libraries(tree: Tree) -> None:
    for stem in ("libcuda", "libGLX_nvidia", "libnvidia-opticalflow", "libnvidia-allocator"):
        put_library(tree, "/usr/lib64", f"{stem}.so")
    links = {link for entry in find_driver_files(tree, VERSION).libraries for link in entry.links}
    assert links == {
        Link("libcuda.so.1", "/usr/lib64/libcuda.so"),
        Link(f"libGLX_nvidia.so.{VERSION}", "/usr/lib64/libGLX_indirect.so.0"),
        Link("libnvidia-opticalflow.so.1", "/usr/lib64/libnvidia-opticalflow.so"),
        Link("../libnvidia-allocator.so.1", "/usr/lib64/gbm/nvidia-drm_gbm.so"),
    }


def test_programs_firmware_sockets_and_configs_are_found(tree: Tree) -> None:
    put_library(tree, "/usr/lib64", "libcuda.so")
    put(tree, "/usr/bin/nvidia-smi", mode=0o755)
    put(tree, "/bin/nvidia-smi", mode=0o755)
    put(tree, "/usr/bin/nvidia-debugdump", mode=0o644)
    put(tree, f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
    put(tree, "/lib/firmware/nvidia/535.1/gsp_ga10x.bin")
    put(tree, "/run/nvidia-persistenced/socket")
    put(tree, "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json")
    put(tree, "/usr/share/vulkan/icd.d/nvidia_icd.json")
    found = find_driver_files(tree, VERSION)
    assert found.programs == ("/usr/bin/nvidia-smi",)
    assert found.firmware == (f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",)
    assert found.sockets == ("/run/nvidia-persistenced/socket",)
    assert {config.path: config.container_path for config in found.configs} == {
        "/usr/local/share/glvnd/egl_vendor.d/10_nvidia.json": (
            "/usr/share/glvnd/egl_vendor.d/10_nvidia.json"
        ),
        "/usr/share/vulkan/icd.d/nvidia_icd.json": "/etc/vulkan/icd.d/nvidia_icd.json",
    }


def test_feature_flags_add_libraries_and_leave_sockets_out(tree: Tree) -> None:
    put_library(tree, "/usr/lib64", "libcuda.so")
    put(tree, "/usr/lib64/libEGL.so.1.1.0", library("libEGL.so.1"))
    tree.at("/usr/lib64/libEGL.so").symlink_to("libEGL.so.1.1.0")
    put(tree, "/run/nvidia-persistenced/socket")
    flags = frozenset({"enable-explicit-driver-libraries", "disable-ipc-discoverer"})
    found = find_driver_files(tree, VERSION, flags)
    assert [entry.path for entry in found.libraries] == [
        f"/usr/lib64/libcuda.so.{VERSION}",
        "/usr/lib64/libEGL.so.1.1.0",
    ]
    assert found.sockets == ()


def test_only_character_devices_are_device_nodes(tree: Tree) -> None:
    assert [node.path for node in char_devices(Tree(Path("/")), ["/dev/null", "/dev/nul?"])] == [
        "/dev/null"
    ]
    put(tree, "/dev/nvidia0")
    assert char_devices(tree, ["/dev/nvidia0", "/dev/missing"]) == ()


def test_a_gpu_without_a_display_part_has_no_drm_nodes(tree: Tree) -> None:
    tree.at("/sys/bus/pci/devices/0000:3b:00.0/drm/card1").mkdir(parents=True)
    assert not drm_nodes(tree, tree, "0000:3b:00.0").nodes
    assert not drm_nodes(tree, tree, "").nodes


def test_the_driver_is_where_it_is_mounted_and_else_where_it_is(tmp_path: Path) -> None:
    mounted, host = tmp_path / "driver-root", tmp_path / "host"
    assert seen_driver_root(str(mounted), str(host)).root == host
    mounted.mkdir()
    driver = seen_driver_root(str(mounted), str(host))
    assert driver.root == mounted
    assert seen_dev_root(driver).root == Path("/")
    (mounted / "dev").mkdir()
    assert seen_dev_root(driver).root == mounted
