"""Debian packages: which ones apt would install on an empty system, and their files."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .commands import run
from .errors import ImageBuildError
from .oci import read_archive
from .tree import Entry, File

_REFRESH = "refresh the package lists with apt-get update, and check the network"
_MERGED = re.compile(r"(bin|sbin|lib|lib32|lib64|libx32)/")
_URI = re.compile(r"'[^']+' (?P<file>(?P<name>[^_\s]+)_(?P<version>[^_\s]+)_\w+\.deb) \d+")
_TRIPLETS = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


@dataclass(frozen=True, slots=True)
class Package:
    name: str
    version: str
    file: str


@dataclass(frozen=True, slots=True)
class Platform:
    """The name of an architecture in Debian and OCI, and its triplet for the loader."""

    architecture: str
    triplet: str

    @property
    def machine(self) -> str:
        return self.triplet.partition("-")[0]


def this_platform() -> Platform:
    command = ["dpkg", "--print-architecture"]
    architecture = run(command, remedy="repair dpkg").decode().strip()
    if architecture not in _TRIPLETS:
        raise ImageBuildError(
            f"architecture {architecture} is not supported: build on {' or '.join(_TRIPLETS)}"
        )
    return Platform(architecture, _TRIPLETS[architecture])


def resolve(names: Sequence[str]) -> list[Package]:
    """These packages and their dependencies, by the package lists of this machine."""
    output = run(
        [
            *("apt-get", "install", "--print-uris", "--yes", "-qq", "--no-install-recommends"),
            # As if nothing was installed, and without root.
            *("-o", "Dir::State::status=/dev/null", "-o", "Debug::NoLocking=true"),
            *names,
        ],
        remedy=_REFRESH,
    )
    return parse_uris(output.decode())


def parse_uris(text: str) -> list[Package]:
    packages = [
        # A file name cannot contain the colon of an epoch.
        Package(found["name"], found["version"].replace("%3a", ":"), found["file"])
        for found in _URI.finditer(text)
    ]
    if not packages:
        raise ImageBuildError(f"apt-get lists no packages: {_REFRESH}")
    return sorted(packages, key=lambda package: package.name)


def download(packages: Iterable[Package], into: Path) -> None:
    """Stores complete files only."""
    wanted = [f"{one.name}={one.version}" for one in packages if not (into / one.file).exists()]
    if not wanted:
        return
    into.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="download-", dir=into) as scratch:
        run(["apt-get", "download", "-qq", *wanted], remedy=_REFRESH, directory=Path(scratch))
        for file in Path(scratch).glob("*.deb"):
            file.rename(into / file.name)


def read_package(file: Path) -> dict[str, Entry]:
    """The files of a package, with `bin`, `sbin` and `lib` below `usr`, as on a merged system."""
    archive = run(["dpkg-deb", "--fsys-tarfile", file], remedy=f"remove {file}, and build again")
    return {_merged(path): _without_setuid(entry) for path, entry in read_archive(archive).items()}


def _merged(path: str) -> str:
    return f"usr/{path}" if _MERGED.match(f"{path}/") else path


def _without_setuid(entry: Entry) -> Entry:
    """Removes setuid, setgid and sticky bits."""
    return File(entry.content, entry.mode & 0o777) if isinstance(entry, File) else entry
