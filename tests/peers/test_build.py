"""The build of NVIDIA's programs: cached, and plain about what is missing."""

from __future__ import annotations

import fcntl
import queue
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path

import pytest

from .build import MODULES, PROGRAMS, PeerBuildError, Peers, build_peers

PATIENCE = 180.0


def test_a_second_call_builds_nothing(peers: Peers) -> None:
    said: list[str] = []
    assert build_peers(say=said.append) == peers
    assert said == []


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.directory)
def test_the_programs_report_the_version_that_go_mod_pins(peers: Peers, module: object) -> None:
    built = {path.name: path for path in asdict(peers).values()}
    for name, owner in PROGRAMS.items():
        if owner is module:
            done = subprocess.run(
                [built[name], "--version"], capture_output=True, text=True, check=False
            )
            assert owner.version in done.stdout, done.stderr


def test_an_unknown_program_is_refused_with_the_list_of_known_ones() -> None:
    with pytest.raises(
        PeerBuildError, match=r"unknown program nvidia-smi: choose from .*nvidia-ct"
    ):
        build_peers(["nvidia-smi"])


def test_a_machine_without_go_is_told_to_install_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PeerBuildError, match=r"go is not on PATH: install Go 1\.\d+"):
        build_peers()


def test_a_go_that_is_too_old_is_told_which_one_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "go"
    old.write_text(
        '#!/bin/sh\necho "go: go.mod requires go >= 1.26.0 (running go 1.19)" >&2\nexit 1\n'
    )
    old.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.raises(PeerBuildError, match=r"Go 1\.26\S* or newer is needed .*GOTOOLCHAIN=auto"):
        build_peers()


def test_an_unreachable_module_proxy_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("GOMODCACHE", str(tmp_path / "modules"))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(PeerBuildError, match=r"(?s)Go module proxy, which cannot be reached.*off"):
        build_peers(["nvidia-cdi-hook"], say=lambda _: None)


def test_a_second_build_waits_until_the_first_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "/nowhere/cc")  # so that it ends soon, once it may begin
    lock = tmp_path / "gpuslice" / "peers" / "lock"
    lock.parent.mkdir(parents=True)
    said: queue.Queue[str] = queue.Queue()
    with ThreadPoolExecutor() as pool:
        with lock.open("w") as first:
            fcntl.flock(first, fcntl.LOCK_EX)
            second = pool.submit(build_peers, ["nvidia-cdi-hook"], said.put)
            assert "waiting for another process" in said.get(timeout=PATIENCE)
            assert not second.done()
        assert isinstance(second.exception(timeout=PATIENCE), PeerBuildError)


def test_a_machine_without_a_c_compiler_is_told_to_install_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", "/nowhere/cc")
    with pytest.raises(PeerBuildError, match=r"need a C compiler, but '/nowhere/cc'"):
        build_peers(["nvidia-cdi-hook"], say=lambda _: None)


def test_flags_of_the_callers_shell_do_not_reach_the_build(
    peers: Peers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFLAGS", "-mod=vendor")
    monkeypatch.setenv("GOARCH", "arm64")
    monkeypatch.setenv("CGO_ENABLED", "0")
    assert build_peers(say=pytest.fail) == peers
