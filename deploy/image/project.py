"""What the image says about itself, and how its containers start."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from .commands import ROOT
from .debian import Platform
from .errors import ImageBuildError
from .oci import Settings

# What a wheel of gpuslice is made from.
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
# A name that no engine completes, and that none looks for elsewhere: it is there or it is not.
_PREFIX = "localhost"


@dataclass(frozen=True, slots=True)
class Project:
    version: str
    description: str
    licence: str
    minimum_python: tuple[int, int]
    programs: Mapping[str, str]


def read_project() -> Project:
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    stated = tomllib.loads(text)["project"]
    return Project(
        stated["version"],
        stated["description"],
        stated["license"],
        minimum_version(stated["requires-python"]),
        stated["scripts"],
    )


def minimum_version(requires: str) -> tuple[int, int]:
    found = re.fullmatch(r">=(\d+)\.(\d+)", requires)
    if found is None:
        raise ImageBuildError(f"requires-python {requires!r} in pyproject.toml: write it as >=3.11")
    return int(found[1]), int(found[2])


def image_name(project: Project) -> str:
    """Under which engines store the image, and manifests name it."""
    return f"{_PREFIX}/gpuslice:{project.version}"


def image_settings(project: Project, platform: Platform) -> Settings:
    commit = _commit()
    labels = {
        "title": "gpuslice",
        "description": project.description,
        "version": project.version,
        "licenses": project.licence,
        **({"revision": commit.id} if commit else {}),
    }
    return Settings(
        architecture=platform.architecture,
        # Manifests for NVIDIA's device plugin may give no command, or arguments only.
        entrypoint=("nvidia-device-plugin",),
        environment={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # Manifests for gpushare and for NVIDIA's plugin leave these two to the image; compute
            # brings nvidia-cuda-mps-control.
            "NVIDIA_VISIBLE_DEVICES": "all",
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
        },
        user="0:0",
        labels={f"org.opencontainers.image.{name}": value for name, value in labels.items()},
        created=_iso(commit.seconds if commit else 0),
    )


@dataclass(frozen=True, slots=True)
class _Commit:
    id: str
    seconds: int


def _commit() -> _Commit | None:
    """None where the image is of no commit: there is no repository, or there are changes."""
    inputs = [*SOURCES, "uv.lock", "deploy/image"]
    if _git("status", "--porcelain", "--", *inputs) != "":
        return None
    said = _git("show", "--no-patch", "--format=%H %ct")
    return _Commit(said.split()[0], int(said.split()[1])) if said else None


def _iso(seconds: int) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        )
    except OSError:
        return None
    return None if done.returncode else done.stdout.strip()
