"""Locks of directories never stop a process for good."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.files.lock import LockHeld, lock_directory, locked_directory


@pytest.fixture
def held(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield descriptor
    os.close(descriptor)


@pytest.mark.usefixtures("held")
def test_a_lock_that_another_process_holds_is_an_error_that_names_the_process(
    tmp_path: Path,
) -> None:
    with pytest.raises(LockHeld, match=rf"process {os.getpid()} \(.+\); end it"):
        locked_directory(tmp_path, 0.05).__enter__()


def test_waiting_for_a_lock_is_reported_and_ends_with_the_lock(tmp_path: Path, held: int) -> None:
    reported: list[LockHeld] = []

    def waits(error: LockHeld) -> None:
        reported.append(error)
        fcntl.flock(held, fcntl.LOCK_UN)

    async def main() -> None:
        async with asyncio.timeout(30), lock_directory(tmp_path, waits, 0.05):
            assert len(reported) == 1

    asyncio.run(main())
