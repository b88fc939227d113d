"""The specifications of single containers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from pathlib import Path

import pytest

from gpuslice.cdi.bound_specs import BoundSpecs, device_name, qualified
from gpuslice.cdi.errors import CdiError
from gpuslice.inject.edits import ContainerEdits, Mount
from gpuslice_sim.kubelet import CdiRuntime

EDITS = ContainerEdits({"A": "1"}, (Mount("/host", "/here"),))
# Ends early if the file is read.
PATIENCE = 30.0


def put(specs: BoundSpecs, name: str, edits: ContainerEdits, seconds: float) -> bool | None:
    return asyncio.run(specs.put(name, edits, seconds))


def test_the_name_follows_from_resource_and_ids_in_any_order() -> None:
    name = device_name("a/b", ["1", "2"])
    assert name == device_name("a/b", ["2", "1"])
    others = {device_name("a/b", ["1"]), device_name("a/b", ["12"]), device_name("a/c", ["1", "2"])}
    assert len(others) == 3
    assert name not in others
    # CDI before 0.5.0 does not allow names that begin with a digit.
    assert name[0].isalpha()


def test_a_runtime_that_watches_the_directory_has_read_what_is_put(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path)
    with CdiRuntime(tmp_path):
        assert put(specs, "c1", EDITS, PATIENCE) is True
        assert put(specs, "c1", EDITS, PATIENCE) is None
        assert put(specs, "c1", ContainerEdits({"A": "2"}), PATIENCE) is True
    [path] = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert qualified("c1") == f"{content['kind']}={content['devices'][0]['name']}"
    assert content["devices"][0]["containerEdits"] == {"env": ["A=2"]}
    assert path.stat().st_mode & 0o777 == 0o644


def test_what_nothing_has_read_is_written_again(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path)
    assert put(specs, "c1", EDITS, 0.01) is False
    with CdiRuntime(tmp_path):
        assert put(specs, "c1", EDITS, PATIENCE) is True


def test_a_probe_tells_whether_a_runtime_reads_and_leaves_nothing(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path)
    assert asyncio.run(specs.probe(0.01)) is False
    with CdiRuntime(tmp_path):
        assert asyncio.run(specs.probe(PATIENCE)) is True
    assert not list(tmp_path.iterdir())


def test_specifications_that_nothing_uses_are_removed_after_a_while(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path)
    for name in ("c1", "c2", "c3"):
        put(specs, name, EDITS, 0.01)
    foreign = tmp_path / "nvidia.yaml"
    foreign.touch()
    os.utime(tmp_path / "gpuslice.io-c1.json", (0, 0))
    os.utime(tmp_path / "gpuslice.io-c2.json", (0, 0))
    os.utime(foreign, (0, 0))
    assert specs.collect({"c1"}, 60) == ["c2"]
    assert [name for name in ("c1", "c2", "c3") if name in specs] == ["c1", "c3"]
    assert foreign.exists()


def test_a_specification_that_is_needed_again_is_kept(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path)
    with CdiRuntime(tmp_path):
        put(specs, "c1", EDITS, PATIENCE)
        os.utime(tmp_path / "gpuslice.io-c1.json", (0, 0))
        assert put(specs, "c1", EDITS, PATIENCE) is None
        assert specs.collect((), 60) == []


def test_a_directory_that_is_missing_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    specs = BoundSpecs(tmp_path / "missing")
    with pytest.raises(CdiError, match="mount the host's"):
        put(specs, "c1", EDITS, 0.01)
    with pytest.raises(CdiError, match="mount the host's"):
        asyncio.run(specs.probe(0.01))


def test_many_at_once_need_few_inotify_instances(tmp_path: Path) -> None:
    """A user has 128 on the whole node."""
    specs = BoundSpecs(tmp_path)

    async def scenario() -> int:
        puts = [asyncio.create_task(specs.put(f"c{n}", EDITS, PATIENCE)) for n in range(150)]
        most = 0
        while not all(one.done() for one in puts):
            most = max(most, inotify_instances())
            await asyncio.wait(puts, timeout=0.002)
        assert {one.result() for one in puts} == {True}
        return most

    with CdiRuntime(tmp_path):
        before = inotify_instances()
        assert asyncio.run(scenario()) - before <= 50
    assert inotify_instances() < before


def inotify_instances() -> int:
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += link.readlink().name == "anon_inode:inotify"
    return found
