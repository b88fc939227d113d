"""Single CDI files: added, replaced and collected."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpuslice.cdi.document import Spec, Style
from gpuslice.cdi.errors import CdiError
from gpuslice.cdi.store import CdiStore
from gpuslice.inject.edits import ContainerEdits

OURS = "k8s.device-plugin.nvidia.com"


def spec(cls: str, **env: str) -> Spec:
    return Spec(cls, {"one": ContainerEdits(env)})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "run" / "cdi"


@pytest.fixture
def store(directory: Path) -> CdiStore:
    return CdiStore(directory)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_specification_is_added_and_replaced_by_its_class(
    store: CdiStore, directory: Path
) -> None:
    assert "gpu" not in store
    store.put(spec("gpu", A="1"), Style())
    store.put(spec("imex-channel", A="1"), Style())
    store.put(spec("gpu", A="2"), Style())
    assert "gpu" in store
    assert store.classes() == {"gpu", "imex-channel"}
    assert names(directory) == [f"{OURS}-gpu.json", f"{OURS}-imex-channel.json"]
    content = json.loads((directory / f"{OURS}-gpu.json").read_text())
    assert content["devices"][0]["containerEdits"] == {"env": ["A=2"]}


def test_an_equal_specification_is_not_written_again(store: CdiStore, directory: Path) -> None:
    store.put(spec("gpu", A="1"), Style())
    before = (directory / f"{OURS}-gpu.json").stat().st_ino
    store.put(spec("gpu", A="1"), Style())
    assert (directory / f"{OURS}-gpu.json").stat().st_ino == before


def test_a_specification_without_devices_is_removed(store: CdiStore, directory: Path) -> None:
    store.put(spec("gpu", A="1"), Style())
    store.put(Spec("gpu", {}), Style())
    assert names(directory) == []


def test_all_but_the_kept_ones_are_collected_and_foreign_files_stay(
    store: CdiStore, directory: Path
) -> None:
    for cls in ("gpu", "gds", "mofed"):
        store.put(spec(cls), Style())
    for name in ("other.json", f"{OURS}-notes.txt"):
        (directory / name).write_text("{}")
    store.collect(keep={"gds", "gdrcopy"})
    assert names(directory) == [f"{OURS}-gds.json", f"{OURS}-notes.txt", "other.json"]
    store.collect()
    assert names(directory) == [f"{OURS}-notes.txt", "other.json"]
    store.collect()


def test_a_missing_directory_holds_nothing(store: CdiStore) -> None:
    assert store.classes() == frozenset()
    store.collect()
    store.remove("gpu")


def test_a_failed_write_leaves_the_old_file_and_states_the_remedy(
    store: CdiStore, directory: Path
) -> None:
    store.put(spec("gpu", A="1"), Style())
    # A directory in the way of the draft: fails for root as well.
    (directory / f".{OURS}-gpu.json.tmp").mkdir()
    with pytest.raises(CdiError, match=r"gpu\.json cannot be written .* mount the host's"):
        store.put(spec("gpu", A="2"), Style())
    assert json.loads((directory / f"{OURS}-gpu.json").read_text())["devices"]
