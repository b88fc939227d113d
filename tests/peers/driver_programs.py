"""NVIDIA's own MPS programs, from Debian's packages of the driver.

    programs = fetch(550)            # less than a second the first time
    programs.control, programs.server

They run without a GPU and without a driver. The licence allows their use, not their redistribution:
they are fetched from the Debian mirror of this machine into the cache, and never committed. A file
whose checksum is not the one below is rejected.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from .build import Say, cache_directory, exclusive, to_stderr

_ARCHITECTURE = "amd64"
_POOL = "pool/non-free/n/nvidia-graphics-drivers"
# Not on PATH. It verifies checksums, and uses the proxies and credentials of apt.
_HELPER = Path("/usr/lib/apt/apt-helper")
_MIRROR_VARIABLE = "GPUSLICE_PEERS_DEBIAN_MIRROR"


@dataclass(frozen=True, slots=True)
class _Package:
    version: str
    sha256: str

    @property
    def file(self) -> str:
        return f"nvidia-cuda-mps_{self.version}_{_ARCHITECTURE}.deb"


_PACKAGES = {
    535: _Package(
        "535.261.03-1", "1341544805aa9c839af45bac5a4bd697cb3eb43105eec439bfba60a8e13ba35a"
    ),
    550: _Package(
        "550.163.01-2", "7da3f29e5ad3390d9fddab7042fa6e9a76df85a69d69efc40401df2f83874764"
    ),
    555: _Package(
        "555.58.02-4", "7f68f5de74d4ab4fa3182e23bcb7eaa8fd86e54cb8f406f4bebdee963cd4b725"
    ),
}
BRANCHES = tuple(_PACKAGES)


class DriverProgramsMissing(Exception):
    """They cannot be had on this machine. The message names the reason and the remedy."""


@dataclass(frozen=True, slots=True)
class DriverPrograms:
    branch: int
    version: str
    control: Path
    server: Path


def fetch(branch: int, say: Say = to_stderr) -> DriverPrograms:
    """Raises DriverProgramsMissing."""
    package = _PACKAGES[branch]
    place = cache_directory("peers") / f"nvidia-cuda-mps-{package.sha256[:16]}"
    if not place.exists():
        with exclusive(cache_directory("peers"), say):
            if not place.exists():  # another process may have fetched it meanwhile
                _unpack(package, place, say)
    return DriverPrograms(
        branch,
        package.version.partition("-")[0],
        place / "usr/bin/nvidia-cuda-mps-control",
        place / "usr/sbin/nvidia-cuda-mps-server",
    )


def _unpack(package: _Package, place: Path, say: Say) -> None:
    _require_debian()
    uri = f"{_mirror().rstrip('/')}/{_POOL}/{package.file}"
    say(f"downloading nvidia-cuda-mps {package.version} …")
    with tempfile.TemporaryDirectory(prefix="fetch-", dir=place.parent) as scratch:
        file, unpacked = Path(scratch) / package.file, Path(scratch) / "unpacked"
        _run(
            [_HELPER, "-qq", "download-file", uri, file, f"SHA256:{package.sha256}"],
            "check the network; if the mirror no longer has this version, pin another one here",
        )
        _run(["dpkg-deb", "-x", file, unpacked], "run it again")
        unpacked.rename(place)


def _require_debian() -> None:
    missing = [name for name in ("apt-get", "dpkg", "dpkg-deb") if shutil.which(name) is None]
    if missing or not _HELPER.exists():
        raise DriverProgramsMissing(
            "NVIDIA's MPS programs come from a Debian package, and the tools of Debian are not on "
            "this machine: run this on Debian"
        )
    architecture = _run(["dpkg", "--print-architecture"], "repair dpkg").strip()
    if architecture != _ARCHITECTURE:
        raise DriverProgramsMissing(
            f"NVIDIA's MPS programs are pinned for {_ARCHITECTURE}, and this machine has "
            f"{architecture}"
        )


def _mirror() -> str:
    """The Debian mirror that apt uses here."""
    if given := os.environ.get(_MIRROR_VARIABLE):
        return given
    fields = "$(ORIGIN)\t$(COMPONENT)\t$(RELEASE)\t$(REPO_URI)"
    listed = _run(["apt-get", "indextargets", "--format", fields], "repair the sources of apt")
    for line in sorted(set(listed.splitlines())):
        origin, component, release, uri = line.split("\t")
        if (origin, component) == ("Debian", "main") and not release.endswith("-security"):
            return uri
    raise DriverProgramsMissing(
        "NVIDIA's MPS programs come from a Debian mirror, and apt has none: run apt-get update on "
        f"Debian, or set {_MIRROR_VARIABLE} to the URI of a mirror"
    )


def _run(argv: list[str | Path], remedy: str) -> str:
    done = subprocess.run(
        argv,
        env=os.environ | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        errors = "\n".join(done.stderr.strip().splitlines()[-8:])
        words = " ".join(str(word) for word in argv[:3])
        raise DriverProgramsMissing(f"{words} … failed: {remedy}\n{errors}")
    return done.stdout
