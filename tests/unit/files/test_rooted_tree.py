"""Paths below a root have the meaning that they have for processes with that root."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.files.rooted_tree import Tree


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    root = tmp_path / "root"
    (root / "usr" / "lib64").mkdir(parents=True)
    (root / "usr" / "lib64" / "libcuda.so.570.1").touch()
    (root / "lib64").symlink_to("usr/lib64")
    return Tree(root)


def test_links_are_followed_inside_the_root_only(tree: Tree) -> None:
    tree.at("/etc").mkdir()
    tree.at("/etc/absolute").symlink_to("/usr/lib64/libcuda.so.570.1")
    tree.at("/etc/relative").symlink_to("../lib64/./libcuda.so.570.1")
    tree.at("/etc/above").symlink_to("../../../../usr/lib64/libcuda.so.570.1")
    (tree.root.parent / "outside").touch()
    tree.at("/etc/out").symlink_to("../../outside")
    for name in ("absolute", "relative", "above"):
        assert tree.resolve(f"/etc/{name}") == "/usr/lib64/libcuda.so.570.1"
    assert tree.resolve("/etc/out") is None


def test_linked_directories_are_followed_inside_the_root_only(tree: Tree) -> None:
    tree.at("/etc").mkdir()
    tree.at("/etc/passwd").touch()
    tree.at("/escape").symlink_to("../../../../etc")
    assert tree.resolve("lib64/libcuda.so.570.1") == "/usr/lib64/libcuda.so.570.1"
    assert tree.resolve("/lib64/../lib64/libcuda.so.570.1") == "/usr/lib64/libcuda.so.570.1"
    assert tree.resolve("/escape/passwd") == "/etc/passwd"


def test_a_file_with_two_paths_is_listed_once(tree: Tree) -> None:
    paths = [f"/{place}/libcuda.so.570.1" for place in ("usr/lib64", "lib64")]
    assert tree.resolved(paths) == ["/usr/lib64/libcuda.so.570.1"]


def test_a_link_without_a_target_is_not_resolved(tree: Tree) -> None:
    tree.at("/loop").symlink_to("loop")
    tree.at("/gone").symlink_to("missing")
    assert tree.resolve("/loop") is None
    assert tree.resolve("/gone") is None
    assert not tree.is_file("/gone")
    assert tree.matching("/gone") == ["/gone"]


def test_patterns_match_names_in_order(tree: Tree) -> None:
    for name in ("gsp_tu10x.bin", "gsp_ga10x.bin", "other.bin"):
        tree.at(f"/usr/{name}").touch()
    assert tree.matching("/usr/gsp*.bin") == ["/usr/gsp_ga10x.bin", "/usr/gsp_tu10x.bin"]
    assert tree.matching("/missing/*") == []


def test_a_program_can_be_executed(tree: Tree) -> None:
    path = tree.at("/usr/nvidia-smi")
    path.touch(0o644)
    assert not tree.is_program("/usr/nvidia-smi")
    path.chmod(0o755)
    assert tree.is_program("/usr/nvidia-smi")
    assert not tree.is_program("/usr/lib64")
