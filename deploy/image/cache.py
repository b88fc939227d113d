"""Packages and layers of earlier builds, in the cache directory of the user."""

from __future__ import annotations

import fcntl
import hashlib
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .oci import Layer, read_compressed_layer

Say = Callable[[str], None]
# Edits and branches are often built again, older sources are not.
_KEPT_LAYERS = 4


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuslice" / "image"


@dataclass(frozen=True, slots=True)
class Cache:
    directory: Path

    @property
    def packages(self) -> Path:
        return self.directory / "packages"

    def layer(self, kind: str, key: str, make: Callable[[], Layer]) -> Layer:
        """The layer of this key. If it is missing, it is built and stored atomically."""
        place = self.directory / "layers" / f"{kind}-{key}"
        if place.exists():
            place.touch()
            return read_compressed_layer(place.read_bytes())
        layer = make()
        place.parent.mkdir(parents=True, exist_ok=True)
        write_complete(place, lambda fresh: fresh.write_bytes(layer.blob))
        by_age = sorted(place.parent.glob(f"{kind}-*"), key=lambda file: file.stat().st_mtime)
        for old in by_age[:-_KEPT_LAYERS]:
            old.unlink()
        return layer

    @contextmanager
    def exclusive(self, say: Say) -> Iterator[None]:
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "lock").open("w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                say("waiting for another build …")
                fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def write_complete(target: Path, write: Callable[[Path], object]) -> None:
    """Writes the file atomically: it exists completely or not at all."""
    fresh = target.with_name(f".{target.name}-{os.getpid()}")
    try:
        write(fresh)
        fresh.replace(target)
    finally:
        fresh.unlink(missing_ok=True)


def key_of(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def fingerprint(files: Iterable[Path], root: Path) -> str:
    """A digest of names and contents."""
    digest = hashlib.sha256()
    for file in sorted(files):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(root)}\0{content}\n".encode())
    return digest.hexdigest()


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
