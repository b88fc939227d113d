"""The kubelet's links to logs -> names of containers."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.container_names import ContainerName, read_container_names

ONE = ContainerId("uid-1", "1" * 64)
TWO = ContainerId("uid-2", "2" * 64)
MAIN = ContainerName("team-a", "web-0", "main")


def link(
    directory: Path, one: ContainerId, name: ContainerName, *, uid: str = "", cut: int = 0
) -> None:
    stem = f"{name.pod}_{name.namespace}_{name.container}-{one.container_id}"
    target = (
        f"/var/log/pods/{name.namespace}_{name.pod}_{uid or one.pod_uid}/{name.container}/0.log"
    )
    (directory / f"{stem[: len(stem) - cut]}.log").symlink_to(target)


def test_a_container_has_the_name_of_its_link(tmp_path: Path) -> None:
    other = ContainerName("team-b", "web-0", "side-car")
    link(tmp_path, ONE, MAIN)
    link(tmp_path, TWO, other)
    assert read_container_names(tmp_path, {ONE, TWO}) == {ONE: MAIN, TWO: other}
    assert read_container_names(tmp_path, {TWO}) == {TWO: other}


def test_a_link_of_another_pod_is_not_believed(tmp_path: Path) -> None:
    link(tmp_path, ONE, MAIN, uid="uid-3")
    assert read_container_names(tmp_path, {ONE}) == {}


def test_two_pods_of_one_name_are_not_certain(tmp_path: Path) -> None:
    """The kubelet lists the devices of a pod by its name only."""
    link(tmp_path, ONE, MAIN)
    link(tmp_path, TWO, MAIN)
    assert read_container_names(tmp_path, {ONE}) == {}


def test_restarts_of_a_container_are_the_same_pod(tmp_path: Path) -> None:
    link(tmp_path, ONE, MAIN)
    link(tmp_path, ContainerId("uid-1", "3" * 64), MAIN)
    assert read_container_names(tmp_path, {ONE}) == {ONE: MAIN}


def test_a_name_that_was_cut_off_and_other_files_are_skipped(tmp_path: Path) -> None:
    link(tmp_path, ONE, MAIN, cut=5)
    (tmp_path / f"x-{ONE.container_id}.log").write_text("no link")
    (tmp_path / f"y-{ONE.container_id}.log").symlink_to("/etc/passwd")
    (tmp_path / "directory").mkdir()
    assert read_container_names(tmp_path, {ONE}) == {}


def test_a_directory_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_container_names(tmp_path / "missing", {ONE})
