"""The CDI specifications of single containers, each in a file of its own.

The name follows from the device ids: the kubelet keeps Allocate's answer with the name for as long
as the pod exists, and an agent that restarts finds the name again without any state of its own.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import time
from collections.abc import Collection, Iterable
from pathlib import Path

from gpuslice.cdi.errors import CdiError
from gpuslice.files.atomic import is_current
from gpuslice.files.read_barrier import replace_and_await_reader
from gpuslice.inject.edits import ContainerEdits

VENDOR, CLASS = "gpuslice.io", "container"

_PREFIX, _SUFFIX = f"{VENDOR}-", ".json"
_PROBE = "probe"
# Each needs an inotify instance while it waits. By default, a user has 128 on the whole node.
_MOST_AT_ONCE = 16


def device_name(resource: str, ids: Iterable[str]) -> str:
    digest = hashlib.sha256("\0".join([resource, *sorted(ids)]).encode()).hexdigest()
    # A name that begins with a digit needs a newer version of the format.
    return f"c{digest[:31]}"


def qualified(name: str) -> str:
    return f"{VENDOR}/{CLASS}={name}"


def is_own_file(path: Path) -> bool:
    return path.name.startswith(_PREFIX)


class BoundSpecs:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        # Files that the runtime has perhaps not read since they changed.
        self._unread: set[str] = set()
        self._writing = asyncio.Semaphore(_MOST_AT_ONCE)

    def __contains__(self, name: str) -> bool:
        return self._path(name).exists()

    async def put(self, name: str, edits: ContainerEdits, seconds: float) -> bool | None:
        """Returns whether the runtime has read the file; None: it is unchanged.

        A runtime reads changed files in the background. Until it has, it would create the container
        with the old content. Raises CdiError.
        """
        content = _content(CLASS, name, edits)
        path = self._path(name)
        if name not in self._unread and is_current(path, content) and _mark_as_needed(path):
            return None
        self._unread.add(name)
        is_read = await self._write(path, content, seconds)
        if is_read:
            self._unread.discard(name)
        return is_read

    async def probe(self, seconds: float) -> bool:
        """Whether a runtime reads new files in this directory. Raises CdiError."""
        path = self._path(_PROBE)
        edits = ContainerEdits({"GPUSLICE_PROBE": str(time.time_ns())})
        try:
            return await self._write(path, _content(_PROBE, _PROBE, edits), seconds)
        finally:
            path.unlink(missing_ok=True)

    def remove(self, name: str) -> None:
        """Raises CdiError if it is there and cannot be removed. Blocks."""
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(
                f"{self._path(name)} cannot be removed ({error.strerror}): remove it by hand"
            ) from error

    def collect(self, keep: Collection[str] = (), older_than_seconds: float = 0.0) -> list[str]:
        """Removes all others that are older than this, and returns their names. Blocks."""
        removed = []
        for path in sorted(self._directory.glob(f"{_PREFIX}*{_SUFFIX}")):
            name = path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            if name not in keep and _age(path) >= older_than_seconds:
                self.remove(name)
                removed.append(name)
        return removed

    def variables(self, variable: str) -> dict[str, str]:
        """The value of an environment variable in each specification that has it. Blocks."""
        return {
            name: variables[variable]
            for name, variables in self.environments().items()
            if variable in variables
        }

    def environments(self) -> dict[str, dict[str, str]]:
        """The environment variables of each specification. Blocks."""
        return {
            path.name.removeprefix(_PREFIX).removesuffix(_SUFFIX): _variables(path)
            for path in self._directory.glob(f"{_PREFIX}*{_SUFFIX}")
        }

    async def _write(self, path: Path, content: bytes, seconds: float) -> bool:
        try:
            async with self._writing:
                return await replace_and_await_reader(path, content, seconds)
        except OSError as error:
            raise CdiError(
                f"{path} cannot be written ({error.strerror}): mount the host's "
                f"{self._directory} into this container, writable"
            ) from error

    def _path(self, name: str) -> Path:
        return self._directory / f"{_PREFIX}{name}{_SUFFIX}"


def _content(cls: str, name: str, edits: ContainerEdits) -> bytes:
    # Imported here: an agent without CDI saves the memory.
    from gpuslice.cdi.document import Spec, Style, document

    spec = Spec(cls, {name: edits}, vendor=VENDOR)
    return json.dumps(document(spec, Style()), indent=2).encode() + b"\n"


def _variables(path: Path) -> dict[str, str]:
    try:
        [device] = json.loads(path.read_bytes())["devices"]
        variables = device["containerEdits"].get("env", ())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # it was removed meanwhile, or it is not ours
    return dict(str(one).split("=", 1) for one in variables if "=" in str(one))


def _mark_as_needed(path: Path) -> bool:
    """Not a change for the runtime, but `collect` keeps the file. False: it is gone."""
    try:
        os.utime(path)
    except OSError:
        return False
    return True


def _age(path: Path) -> float:
    try:
        return time.time() - path.stat(follow_symlinks=False).st_mtime
    except OSError:
        return 0.0
