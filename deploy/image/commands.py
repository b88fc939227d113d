"""Other programs: run, and their failures told with a remedy."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from .errors import ImageBuildError

ROOT = Path(__file__).parents[2]


def run(
    argv: Sequence[str | Path],
    *,
    remedy: str,
    directory: Path = ROOT,
    environment: Mapping[str, str] | None = None,
) -> bytes:
    """What it wrote to standard output. `environment` replaces the caller's."""
    command = " ".join(str(word) for word in argv[:3])
    try:
        done = subprocess.run(
            argv,
            cwd=directory,
            env=os.environ | {"LC_ALL": "C"} if environment is None else dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise ImageBuildError(f"{command} … does not start ({error.strerror}): {remedy}") from error
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()[-15:]
        raise ImageBuildError("\n".join([f"{command} … failed: {remedy}", *said]))
    return done.stdout


def require_debian() -> None:
    missing = [name for name in ("apt-get", "dpkg", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise ImageBuildError(
            f"the image is made of Debian packages, but {' and '.join(missing)} is not on PATH: "
            "run this on Debian or Ubuntu"
        )


def find_uv(root: Path = ROOT) -> Path:
    own = root / ".tools/uv/bin/uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise ImageBuildError(
            "the image has wheels that uv installs, but uv is neither on PATH nor in .tools: run "
            "make setup"
        )
    return Path(found)
