"""A build: what it keeps, and what it says where it cannot be done."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image import ImageBuildError, build_image
from deploy.image.cache import Cache, fingerprint, key_of
from deploy.image.commands import find_uv, run
from deploy.image.oci import Layer, compressed_layer
from deploy.image.tree import File

ROOT = Path(__file__).parents[3]


def layer(text: bytes) -> Layer:
    return compressed_layer({"file": File(text)})


def never() -> Layer:
    raise AssertionError("it is there already")


def test_a_layer_is_made_once(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = cache.layer("one", "key", lambda: layer(b"x"))
    assert cache.layer("one", "key", never) == made


def test_a_layer_that_failed_is_made_again(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    with pytest.raises(AssertionError):
        cache.layer("one", "key", never)
    assert cache.layer("one", "key", lambda: layer(b"x")) == layer(b"x")


def test_old_layers_make_room_for_new_ones(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.layer("other", "key", lambda: layer(b"stays"))
    for number in range(6):
        cache.layer("one", f"key{number}", lambda: layer(b"x"))
        os.utime(tmp_path / f"layers/one-key{number}", (number, number))
    kept = sorted(path.name for path in (tmp_path / "layers").iterdir())
    assert kept == ["one-key2", "one-key3", "one-key4", "one-key5", "other-key"]


def test_a_key_tells_names_from_contents_and_parts_from_each_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("1")
    first = fingerprint([tmp_path / "a"], tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    second = fingerprint([tmp_path / "b"], tmp_path)
    (tmp_path / "b").write_text("2")
    third = fingerprint([tmp_path / "b"], tmp_path)
    assert len({first, second, third}) == 3
    assert key_of("ab", "c") != key_of("a", "bc")


@pytest.mark.parametrize(
    ("present", "missing"),
    [((), "apt-get and dpkg and dpkg-deb"), (("apt-get", "dpkg"), "dpkg-deb")],
)
def test_a_machine_without_debians_tools_is_told_which_are_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, present: tuple[str, ...], missing: str
) -> None:
    for name in present:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildError, match=f"{missing} is not on PATH: run this on Debian"):
        build_image(tmp_path / "image.tar", cache=tmp_path / "cache", say=lambda _: None)


def test_without_uv_the_way_to_get_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ImageBuildError, match=r"neither on PATH nor in \.tools: run make setup"):
        find_uv(tmp_path)
    own = tmp_path / ".tools/uv/bin/uv"
    own.parent.mkdir(parents=True)
    own.write_text("")
    assert find_uv(tmp_path) == own


def test_a_program_that_fails_is_named_with_its_words_and_the_remedy() -> None:
    with pytest.raises(ImageBuildError, match=r"sh -c .* failed: try again\nno such thing$"):
        run(["sh", "-c", "echo no such thing >&2; exit 3"], remedy="try again")


def test_a_program_that_may_not_be_started_is_named_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "tool").write_text("")
    with pytest.raises(
        ImageBuildError, match=r"tool … cannot be started \(Permission denied\): move"
    ):
        run([tmp_path / "tool"], remedy="move it")


def test_the_command_says_in_one_sentence_what_it_lacks(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.image", "--output", tmp_path / "image.tar"],
        cwd=ROOT,
        env={"PATH": str(tmp_path), "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.startswith("the image consists of Debian packages, but apt-get")
    assert len(done.stderr.splitlines()) == 1
    assert not (tmp_path / "image.tar").exists()
