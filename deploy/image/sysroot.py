"""The image on disk, as far as it is made: its own loader and Python run from where they lie.

So the image's Python compiles what it will run, and its loader tells which libraries are missing,
without entering the image, which only root could.
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
        said = self._load("--list", file).decode()
        found = {match["name"]: match["path"] for match in _RESOLVED.finditer(said)}
        # What the loader finds in the machine's own directories is missing in the image.
        inside = f"{self.directory}/"
        missing = sorted(name for name, path in found.items() if not path.startswith(inside))
        if missing:
            raise ImageBuildError(
                f"{file.relative_to(self.directory)} needs {', '.join(missing)}, which the image "
                "lacks: add the Debian package that has it to PACKAGES in deploy/image/rootfs.py"
            )
        return {Path(path).relative_to(self.directory) for path in found.values()}

    def compile(self, directory: Path) -> None:
        """Bytecode for all modules below, which needs no check against files of the epoch."""
        self._load(
            self.directory / "usr/bin" / self.python,
            *("-s", "-S", "-m", "compileall", "-q", "-f", "-o", "0"),
            *("--invalidation-mode", "unchecked-hash"),
            *("-s", str(self.directory), "-p", "/", directory),
        )

    def _load(self, *argv: str | Path) -> bytes:
        libraries = self.directory / "usr/lib" / self.triplet
        [loader] = libraries.glob("ld-linux-*.so.*")
        # Sets of names are written in the order of their hashes: fix it. Besides, the caller's
        # settings of loader and Python have no say here.
        environment = {
            "PATH": os.defpath,
            "PYTHONHOME": str(self.directory / "usr"),
            "PYTHONHASHSEED": "0",
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        return run(
            [loader, "--inhibit-cache", "--library-path", libraries, *argv],
            remedy="the image's own programs must run here: build on the release that apt gets "
            "packages of, and with a TMPDIR in which programs may be started",
            environment=environment,
        )


def shared_objects(files: Iterable[Path]) -> list[Path]:
    return sorted(file for file in files if re.search(r"\.so(\.|$)", file.name))
