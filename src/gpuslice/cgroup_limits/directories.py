"""Finds the cgroups of pods and containers. Blocks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from gpuslice.cgroup_limits.layout import is_kubepods, may_contain_kubepods, pod_directories
from gpuslice.watchdog.cgroup_path import container_id_of, is_outside_its_pod

# Every cgroup of version 2 has this file.
_CONTROLLERS = "cgroup.controllers"
_INHERITING = "dmem"
# The container of a node, the kubelet's own root, and some slices above each.
_DEEPEST = 6
_MOST_DIRECTORIES = 20_000


class NoCgroups(Exception):
    """The message names the remedy."""


def find_kubepods(root: Path) -> tuple[Path, ...]:
    """The directories above all pods; more than one if several kubelets run. Raises NoCgroups."""
    if not (root / _CONTROLLERS).exists():
        raise NoCgroups(
            f"{root} has no cgroups of version 2: mount this directory of the host into this "
            "container, read-only (docs/security.md)"
        )
    found = tuple(_search(root))
    if not found:
        raise NoCgroups(
            f"{root} has no directory kubepods or kubepods.slice: mount this directory of the "
            "host, and not only the cgroup of this container"
        )
    return found


def limits_are_inherited(root: Path) -> bool:
    """Whether a limit of a cgroup applies to those below: with the dmem controller of the kernel.

    Without it, the driver counts by itself, and only for the cgroup that has the limit.
    """
    try:
        return _INHERITING in (root / _CONTROLLERS).read_text().split()
    except OSError:
        return False


def find_pod(kubepods: tuple[Path, ...], uid: str) -> Path | None:
    places = (place / inner for place in kubepods for inner in pod_directories(place.name, uid))
    return next((path for path in places if path.is_dir()), None)


def find_containers(pod: Path) -> Mapping[str, Path]:
    """By id. Also the one that only keeps the namespaces of the pod."""
    try:
        names = [entry.name for entry in os.scandir(pod) if entry.is_dir(follow_symlinks=False)]
    except OSError:  # the pod has ended
        return {}
    found = ((container_id_of(name), pod / name) for name in names)
    return {container_id: path for container_id, path in found if container_id is not None}


def _search(root: Path) -> Iterator[Path]:
    level, seen = [root], 0
    for _ in range(_DEEPEST):
        below: list[Path] = []
        for directory in level:
            for name in _names(directory):
                seen += 1
                if seen > _MOST_DIRECTORIES:
                    return
                if is_outside_its_pod(name):
                    raise NoCgroups(
                        "the kubelet uses the cgroup driver systemd and the container runtime does "
                        "not, so containers are not in the cgroups of their pods: set "
                        "SystemdCgroup = true in the runtime"
                    )
                if is_kubepods(name):
                    yield directory / name  # cgroups below belong to tenants
                elif may_contain_kubepods(name):
                    below.append(directory / name)
        level = below


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return sorted(one.name for one in entries if one.is_dir(follow_symlinks=False))
    except OSError:
        return []
