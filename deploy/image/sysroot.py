"""The incomplete image on disk, with its own loader and Python.

The Python of the image compiles the modules, and its loader finds missing libraries. Both run
without chroot, which requires root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .commands import run
from .errors import ImageBuildError

_RESOLVED = re.compile(
    r"^\s+(?P<name>\S+) => (?P<path>/.*?|not found)(?: \(0x[0-9a-f]+\))?$", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Sysroot:
    directory: Path
    triplet: str
    python: str

    def libraries(self, file: Path) -> set[Path]:
        """Every library that the loader maps for this file, as paths from the root."""
        output = self._load("--list", file).decode()
        found = {match["name"]: match["path"] for match in _RESOLVED.finditer(output)}
        # A library that the loader finds in a directory of this machine is missing in the image.
        inside = f"{self.directory}/"
        missing = sorted(name for name, path in found.items() if not path.startswith(inside))
        if missing:
            raise ImageBuildError(
                f"{file.relative_to(self.directory)} needs {', '.join(missing)}, which the image "
                "lacks: add its Debian package to PACKAGES in deploy/image/rootfs.py"
            )
        return {Path(path).relative_to(self.directory) for path in found.values()}

    def compile(self, directory: Path) -> None:
        """Compiles all modules. Bytecode is not checked against times, which are all the same."""
        self._load(
            self.directory / "usr/bin" / self.python,
            *("-s", "-S", "-m", "compileall", "-q", "-f", "-o", "0"),
            *("--invalidation-mode", "unchecked-hash"),
            *("-s", str(self.directory), "-p", "/", directory),
        )

    def _load(self, *argv: str | Path) -> bytes:
        libraries = self.directory / "usr/lib" / self.triplet
        [loader] = libraries.glob("ld-linux-*.so.*")
        # Bytecode contains sets in the order of their hashes, so the seed is fixed. Settings of the
        # caller for the loader and Python do not apply.
        environment = {
            "PATH": os.defpath,
            "PYTHONHOME": str(self.directory / "usr"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return run(
            [loader, "--inhibit-cache", "--library-path", libraries, *argv],
            remedy="programs of the image must run here: build on the release whose packages apt "
            "downloads, and with a TMPDIR that allows execution",
            environment=environment,
        )


def shared_objects(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if re.search(r"\.so(\.|$)", file.name))
