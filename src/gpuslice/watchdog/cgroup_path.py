"""The cgroup of a process -> its pod and container. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

_HEX = "[0-9a-f]"
# Static pods have a hash instead of a UUID. The cgroup driver systemd writes "_" for "-".
_UID = rf"{_HEX}{{8}}[-_]{_HEX}{{4}}[-_]{_HEX}{{4}}[-_]{_HEX}{{4}}[-_]{_HEX}{{12}}|{_HEX}{{32}}"
QOS_CLASSES = ("burstable", "besteffort")
# kubepods-burstable-pod<uid>.slice; the kubelet of a nested node adds a prefix.
_SLICE = re.compile(
    rf"(?:[a-z0-9]+-)*kubepods-(?:{'|'.join(QOS_CLASSES)})?-?pod(?P<uid>{_UID})\.slice"
)
_DIRECTORY = re.compile(rf"pod(?P<uid>{_UID})")
# `crio-conmon-<id>` is the monitor of a container and does not belong to it.
_CONTAINER = re.compile(
    rf"(?:cri-containerd-|crio-|docker-)?(?P<id>{_HEX}{{64}})(?:\.scope)?", re.ASCII
)
# Users of the node may create cgroups of any name in theirs.
_USERS = "user.slice"
# What runc makes of a slice if the kubelet uses systemd and the container runtime does not.
_JOINED = re.compile(
    rf"(?P<slice>[^:]+\.slice):(?:cri-containerd|crio|docker):(?P<id>{_HEX}{{64}})"
)


@dataclass(frozen=True, slots=True)
class ContainerId:
    """As the kubelet and the container runtime name it. Both parts are unique for ever."""

    pod_uid: str
    container_id: str


def container_of(cgroups: str) -> ContainerId | None:
    """`cgroups` is the content of /proc/<pid>/cgroup, of cgroup v1, v2 or both.

    None: the process is in no container of a pod, or the hierarchies name different ones.
    """
    found = {one for path in _paths(cgroups) if (one := _in_path(path)) is not None}
    return found.pop() if len(found) == 1 else None


def is_pod_uid(text: str) -> bool:
    return re.fullmatch(_UID, text) is not None


def container_id_of(name: str) -> str | None:
    """`name` is that of a cgroup directly below the cgroup of a pod; None: of no container."""
    matched = _CONTAINER.fullmatch(name)
    return None if matched is None else matched["id"]


def is_outside_its_pod(name: str) -> bool:
    """Whether this is the cgroup of a container that is not below the cgroup of its pod."""
    return _JOINED.fullmatch(name) is not None


def _paths(cgroups: str) -> Iterable[str]:
    """Each line is `<number>:<controllers>:<path>`. Paths may contain colons."""
    for line in cgroups.splitlines():
        fields = line.split(":", 2)
        if len(fields) == 3:
            yield fields[2]


def _in_path(path: str) -> ContainerId | None:
    """The outermost container: whoever may create cgroups in it can choose names below it."""
    names = [name for name in path.split("/") if name]
    if _USERS in names:
        return None
    for position, name in enumerate(names):
        if joined := _JOINED.fullmatch(name):
            matched = _SLICE.fullmatch(joined["slice"])
            return None if matched is None else _container(matched["uid"], joined["id"])
        uid = _pod_uid(name, names[:position])
        if uid is None:
            continue
        inner = _CONTAINER.fullmatch(names[position + 1]) if position + 1 < len(names) else None
        return None if inner is None else _container(uid, inner["id"])
    return None


def _pod_uid(name: str, above: Sequence[str]) -> str | None:
    if matched := _SLICE.fullmatch(name):
        return matched["uid"]
    matched = _DIRECTORY.fullmatch(name)
    return matched["uid"] if matched and _is_kubepods(above) else None


def _is_kubepods(above: Sequence[str]) -> bool:
    """Whether this is the directory of pods.

    In a cgroup namespace, paths are relative to the cgroup of the reader: `/../../pod<uid>/<id>`.
    """
    rest = list(above)
    if rest and rest[-1] in QOS_CLASSES:
        rest.pop()
    return bool(rest) and (rest[-1] == "kubepods" or set(rest) == {".."})


def _container(uid: str, container_id: str) -> ContainerId:
    return ContainerId(uid.replace("_", "-"), container_id)
