"""Name, labels and container settings of the image."""

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

# The sources of the wheel of gpuslice.
SOURCES = ("src", "pyproject.toml", "README.md", "LICENSE")
# Engines neither complete this name nor pull it: the image is loaded or it is missing.
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
    project = tomllib.loads(text)["project"]
    return Project(
        project["version"],
        project["description"],
        project["license"],
        minimum_version(project["requires-python"]),
        project["scripts"],
    )


def minimum_version(requires: str) -> tuple[int, int]:
    found = re.fullmatch(r">=(\d+)\.(\d+)", requires)
    if found is None:
        raise ImageBuildError(
            f"requires-python {requires!r} in pyproject.toml: use a form such as >=3.11"
        )
    return int(found[1]), int(found[2])


def image_name(project: Project) -> str:
    """The name of the image in engines and manifests."""
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
        # Manifests for NVIDIA's device plugin may have no command, or arguments only.
        entrypoint=("nvidia-device-plugin",),
        environment={
            "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            # Manifests for gpushare and for NVIDIA's plugin do not set these two variables. compute
            # includes nvidia-cuda-mps-control.
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
    """None if there is no repository, or if the inputs have uncommitted changes."""
    inputs = [*SOURCES, "uv.lock", "deploy/image"]
    if _git("status", "--porcelain", "--", *inputs) != "":
        return None
    shown = _git("show", "--no-patch", "--format=%H %ct")
    return _Commit(shown.split()[0], int(shown.split()[1])) if shown else None


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
