"""Runs other programs, and reports failures with a remedy."""

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
    """Returns the standard output. `environment` replaces that of this process."""
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
        raise ImageBuildError(
            f"{command} … cannot be started ({error.strerror}): {remedy}"
        ) from error
    if done.returncode:
        output = done.stderr.decode(errors="replace").strip().splitlines()[-15:]
        raise ImageBuildError("\n".join([f"{command} … failed: {remedy}", *output]))
    return done.stdout


def require_debian() -> None:
    missing = [name for name in ("apt-get", "dpkg", "dpkg-deb") if shutil.which(name) is None]
    if missing:
        raise ImageBuildError(
            f"the image consists of Debian packages, but {' and '.join(missing)} is not on PATH: "
            "run this on Debian or Ubuntu"
        )


def find_uv(root: Path = ROOT) -> Path:
    own = root / ".tools/uv/bin/uv"
    found = shutil.which("uv") or (str(own) if own.exists() else None)
    if found is None:
        raise ImageBuildError(
            "uv installs the wheels of the image, but it is neither on PATH nor in .tools: run "
            "make setup"
        )
    return Path(found)
