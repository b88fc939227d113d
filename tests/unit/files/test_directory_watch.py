"""Watching a directory."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.files.directory_watch import watch_directory

# A busy machine may take this long for what happens at once.
SOON = 60.0
NEVER = 10 * SOON
LATER = 0.2


async def is_reported(
    directory: Path, act: Callable[[], object], only: str | None = None, within: float = SOON
) -> bool:
    """Whether the watch reports what `act` does."""
    changed = asyncio.Event()
    watching = asyncio.create_task(
        watch_directory(directory, changed.set, only, resync_seconds=NEVER)
    )
    await asyncio.wait_for(changed.wait(), SOON)
    await asyncio.sleep(LATER)
    changed.clear()
    act()
    try:
        await asyncio.wait_for(changed.wait(), within)
    except TimeoutError:
        return False
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    return True


@pytest.mark.parametrize("what", ["made", "written", "removed", "renamed", "linked", "retouched"])
def test_every_change_in_the_directory_is_reported(tmp_path: Path, what: str) -> None:
    file = tmp_path / "file"
    if what not in ("made", "linked"):
        file.write_text("old")
    acts: dict[str, Callable[[], object]] = {
        "made": file.touch,
        "written": lambda: file.write_text("new"),
        "removed": file.unlink,
        "renamed": lambda: file.rename(tmp_path / "other"),
        "linked": lambda: file.symlink_to("elsewhere"),
        "retouched": lambda: file.chmod(0o600),
    }
    assert asyncio.run(is_reported(tmp_path, acts[what]))


@pytest.mark.parametrize(("name", "changed"), [("file", True), ("..data", True), ("other", False)])
def test_of_a_busy_directory_only_one_file_matters(
    tmp_path: Path, name: str, changed: bool
) -> None:
    within = SOON if changed else 1.0
    assert asyncio.run(is_reported(tmp_path, (tmp_path / name).touch, "file", within)) is changed


def test_a_directory_that_is_created_again_is_watched_again(tmp_path: Path) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir()

    async def scenario() -> None:
        changed = asyncio.Event()
        watching = asyncio.create_task(
            watch_directory(directory, changed.set, resync_seconds=NEVER)
        )
        await asyncio.wait_for(changed.wait(), SOON)
        directory.rename(tmp_path / "old")
        changed.clear()
        await asyncio.wait_for(changed.wait(), SOON)
        directory.mkdir()
        # Polling ends when the new directory is watched.
        await asyncio.sleep(1.0)
        changed.clear()
        (directory / "kubelet.sock").touch()
        await asyncio.wait_for(changed.wait(), SOON)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())


def test_a_directory_that_is_missing_is_polled(tmp_path: Path) -> None:
    async def scenario() -> None:
        changed = asyncio.Event()
        watching = asyncio.create_task(watch_directory(tmp_path / "missing", changed.set))
        await asyncio.wait_for(changed.wait(), SOON)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())


def test_a_watch_needs_no_thread_and_leaves_no_descriptor(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(20):
            assert await is_reported(tmp_path, (tmp_path / "file").touch)
        # Threads of other tests may end meanwhile.
        assert set(threading.enumerate()) <= threads
        assert inotify_instances() <= instances

    threads, instances = set(threading.enumerate()), inotify_instances()
    asyncio.run(scenario())


def inotify_instances() -> int:
    found = 0
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):  # closed meanwhile
            found += "inotify" in str(entry.readlink())
    return found


def test_a_busy_directory_is_resynced_although_its_events_are_ignored(tmp_path: Path) -> None:
    async def scenario() -> None:
        changed = asyncio.Event()
        watching = asyncio.create_task(
            watch_directory(tmp_path, changed.set, only="file", resync_seconds=1.0)
        )
        await asyncio.wait_for(changed.wait(), SOON)
        changed.clear()
        for number in range(35):
            (tmp_path / f"other-{number}").touch()
            await asyncio.sleep(0.2)
            if changed.is_set():
                break
        assert changed.is_set()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())
