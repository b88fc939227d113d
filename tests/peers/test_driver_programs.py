"""The packages of NVIDIA's MPS programs: pinned, cached, and plain about what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from .driver_programs import DriverPrograms, DriverProgramsMissing, fetch


def test_the_programs_are_those_of_the_driver_branch(driver_programs: DriverPrograms) -> None:
    assert driver_programs.version.startswith(f"{driver_programs.branch}.")
    assert driver_programs.version.encode() in driver_programs.control.read_bytes()
    assert driver_programs.server.is_file()


def test_a_second_call_fetches_nothing(driver_programs: DriverPrograms) -> None:
    assert fetch(driver_programs.branch, say=pytest.fail) == driver_programs


def test_a_machine_without_the_tools_of_debian_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DriverProgramsMissing, match="run this on Debian"):
        fetch(550, say=lambda _: None)


def test_a_mirror_that_does_not_have_the_package_is_named(
    driver_programs: DriverPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("GPUSLICE_PEERS_DEBIAN_MIRROR", f"file:{tmp_path}/mirror")
    with pytest.raises(DriverProgramsMissing, match=r"(?s)check the network.*/mirror/"):
        fetch(driver_programs.branch, say=lambda _: None)


def test_a_package_with_another_checksum_is_rejected(
    driver_programs: DriverPrograms, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    branch, version = driver_programs.branch, driver_programs.version
    revision = {535: "1", 550: "2", 555: "4"}[branch]
    pool = tmp_path / "mirror/pool/non-free/n/nvidia-graphics-drivers"
    pool.mkdir(parents=True)
    (pool / f"nvidia-cuda-mps_{version}-{revision}_amd64.deb").write_bytes(b"something else")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GPUSLICE_PEERS_DEBIAN_MIRROR", f"file:{tmp_path}/mirror")
    with pytest.raises(DriverProgramsMissing, match="Hash Sum mismatch"):
        fetch(branch, say=lambda _: None)
    assert list((tmp_path / "cache/gpuslice/peers").iterdir()) == [
        tmp_path / "cache/gpuslice/peers/lock"
    ]
