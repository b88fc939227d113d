"""A directory under watch."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.files.directory_watch import watch_directory

# On a busy machine even what happens at once takes its time.
SOON = 60.0
NEVER = 10 * SOON
LATER = 0.2


async def is_told(
    directory: Path, act: Callable[[], object], only: str | None = None, within: float = SOON
) -> bool:
    """Whether what was done is noticed."""
    told = asyncio.Event()
    watching = asyncio.create_task(
        watch_directory(directory, told.set, only, look_anyway_seconds=NEVER)
    )
    await asyncio.wait_for(told.wait(), SOON)
    await asyncio.sleep(LATER)
    told.clear()
    act()
    try:
        await asyncio.wait_for(told.wait(), within)
    except TimeoutError:
        return False
    finally:
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching
    return True


@pytest.mark.parametrize("what", ["made", "written", "removed", "renamed", "linked", "retouched"])
def test_every_change_in_the_directory_is_told(tmp_path: Path, what: str) -> None:
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
    assert asyncio.run(is_told(tmp_path, acts[what]))


@pytest.mark.parametrize(("name", "told"), [("file", True), ("..data", True), ("other", False)])
def test_of_a_busy_directory_only_one_file_matters(tmp_path: Path, name: str, told: bool) -> None:
    within = SOON if told else 1.0
    assert asyncio.run(is_told(tmp_path, (tmp_path / name).touch, "file", within)) is told


def test_a_directory_that_is_made_anew_is_followed(tmp_path: Path) -> None:
    directory = tmp_path / "plugins"
    directory.mkdir()

    async def scenario() -> None:
        told = asyncio.Event()
        watching = asyncio.create_task(
            watch_directory(directory, told.set, look_anyway_seconds=NEVER)
        )
        await asyncio.wait_for(told.wait(), SOON)
        directory.rename(tmp_path / "old")
        told.clear()
        await asyncio.wait_for(told.wait(), SOON)
        directory.mkdir()
        # Polling ends with the first look at the new directory.
        await asyncio.sleep(1.0)
        told.clear()
        (directory / "kubelet.sock").touch()
        await asyncio.wait_for(told.wait(), SOON)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())


def test_a_directory_that_is_missing_is_polled(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = asyncio.Event()
        watching = asyncio.create_task(watch_directory(tmp_path / "missing", told.set))
        await asyncio.wait_for(told.wait(), SOON)
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())


def test_a_watch_needs_no_thread_and_leaves_no_descriptor(tmp_path: Path) -> None:
    async def scenario() -> None:
        for _ in range(20):
            assert await is_told(tmp_path, (tmp_path / "file").touch)
        # Of other tests there may be some that are just ending.
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


def test_a_busy_directory_is_looked_at_now_and_then_nevertheless(tmp_path: Path) -> None:
    async def scenario() -> None:
        told = asyncio.Event()
        watching = asyncio.create_task(
            watch_directory(tmp_path, told.set, only="file", look_anyway_seconds=1.0)
        )
        await asyncio.wait_for(told.wait(), SOON)
        told.clear()
        for number in range(35):
            (tmp_path / f"other-{number}").touch()
            await asyncio.sleep(0.2)
            if told.is_set():
                break
        assert told.is_set()
        watching.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await watching

    asyncio.run(scenario())
