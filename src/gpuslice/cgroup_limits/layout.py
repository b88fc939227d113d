"""Where the kubelet has the cgroups of pods. Pure.

With the cgroup driver cgroupfs: kubepods/burstable/pod<uid>/<id>, with systemd:
kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod<uid>.slice/cri-containerd-<id>.scope.
Pods of the class Guaranteed have no directory for their class. The kubelet's own --cgroup-root, for
example of kind, and the container of a nested node add directories above; with systemd, names of
slices also begin with those of the slices above.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from gpuslice.watchdog.cgroup_path import QOS_CLASSES, is_pod_uid

_KUBEPODS = "kubepods"
_SLICE = ".slice"
_SYSTEMD = re.compile(rf"(?:[a-z0-9]+-)*{_KUBEPODS}\.slice")
# Users of the node may create cgroups of any name in theirs.
_FOREIGN = "user.slice"


def is_kubepods(name: str) -> bool:
    """Whether this is the directory above all pods."""
    return name == _KUBEPODS or _SYSTEMD.fullmatch(name) is not None


def may_contain_kubepods(name: str) -> bool:
    """Whoever is in a container of another program may create cgroups of any name below it.

    They are below kubepods, except for the container that is this node.
    """
    return name != _FOREIGN


def pod_directories(kubepods: str, uid: str) -> Iterator[str]:
    """Where the cgroup of a pod may be, relative to the directory `kubepods`, which is a name."""
    if not is_pod_uid(uid):
        return
    if not kubepods.endswith(_SLICE):
        yield f"pod{uid}"
        yield from (f"{qos}/pod{uid}" for qos in QOS_CLASSES)
        return
    prefix = kubepods.removesuffix(_SLICE)
    # systemd separates the names of slices by "-".
    escaped = uid.replace("-", "_")
    yield f"{prefix}-pod{escaped}{_SLICE}"
    for qos in QOS_CLASSES:
        yield f"{prefix}-{qos}{_SLICE}/{prefix}-{qos}-pod{escaped}{_SLICE}"
