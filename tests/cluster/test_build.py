"""The cluster's programs: cached, and plain about what is missing."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from .build import Binaries, ClusterBuildError, get_binaries, pinned_versions


def test_a_second_call_builds_nothing(binaries: Binaries) -> None:
    said: list[str] = []
    assert get_binaries(say=said.append) == binaries
    assert said == []


def test_the_programs_are_of_the_version_asked_for(binaries: Binaries) -> None:
    for name in ("kubelet", "kube-apiserver", "kube-scheduler", "kube-controller-manager"):
        done = subprocess.run(
            [binaries.kubernetes / name, "--version"], capture_output=True, text=True, check=True
        )
        assert done.stdout == f"Kubernetes v{binaries.kubernetes_version}\n"


def test_an_unknown_version_is_refused_with_the_list_of_known_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GPUSLICE_K8S_VERSION", "1.2.3")
    with pytest.raises(
        ClusterBuildError, match=r"GPUSLICE_K8S_VERSION=1.2.3 is not pinned: choose from 1\.36\.4"
    ):
        get_binaries()
    assert pinned_versions() == ["1.36.4", "1.37.1"]


def test_a_full_disk_shows_before_anything_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=5 << 30))
    said: list[str] = []
    with pytest.raises(ClusterBuildError, match=r"has 5120 MiB free and .* takes about 6 GB"):
        get_binaries(say=said.append)
    assert said == []


@pytest.mark.parametrize(
    ("present", "message"),
    [
        ((), "go is not on PATH: install Go 1.26"),
        (("go",), "apt-get and dpkg is not on PATH: run this on Debian"),
        (("go", "apt-get", "dpkg"), "need a C compiler, but 'gcc' is not on PATH"),
    ],
)
def test_a_machine_that_lacks_a_program_is_told_which(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...], message: str
) -> None:
    for name in present:
        (tmp_path / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(ClusterBuildError, match=message):
        get_binaries(say=lambda _: None)
