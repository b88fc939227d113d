"""The names of containers by their ids, from the links that the kubelet makes for log collectors.

/var/log/containers/<pod>_<namespace>_<container>-<id>.log
  -> /var/log/pods/<namespace>_<pod>_<uid>/<container>/<restarts>.log

Only names are read, never logs. It is the one place of a node that connects ids and names without
access to the container runtime or to the API server.
"""

from __future__ import annotations

import errno
import os
import re
from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from gpuslice.watchdog.cgroup_path import ContainerId

_ID = re.compile(r".*-(?P<id>[0-9a-f]{64})\.log", re.ASCII | re.DOTALL)
_TARGET = re.compile(
    r"(?P<namespace>[^_/]+)_(?P<pod>[^_/]+)_(?P<uid>[^_/]+)/(?P<container>[^/]+)/[0-9]+\.log",
    re.ASCII,
)
# Far more than a node has containers, even with those that have ended.
_MOST_LINKS = 100_000


@dataclass(frozen=True, slots=True)
class ContainerName:
    namespace: str
    pod: str
    container: str


def read_container_names(
    directory: Path, wanted: Collection[ContainerId]
) -> dict[ContainerId, ContainerName]:
    """Of these containers. Raises OSError if the directory cannot be read. Blocks on the disk.

    The kubelet lists devices by the name of a pod, without its uid. While two pods of one name
    exist, for example because one was deleted by force, none of their containers is returned.
    """
    ids = {one.container_id: one for one in wanted}
    found: dict[ContainerId, ContainerName] = {}
    uids: defaultdict[tuple[str, str], set[str]] = defaultdict(set)
    with os.scandir(directory) as entries:
        for number, entry in enumerate(entries):
            if number >= _MOST_LINKS:
                raise OSError(errno.E2BIG, f"more than {_MOST_LINKS} links", str(directory))
            target = _target(entry.path)
            if target is None:
                continue
            uids[target["namespace"], target["pod"]].add(target["uid"])
            matched = _ID.fullmatch(entry.name)
            one = ids.get(matched["id"]) if matched else None
            # The link must belong to the pod of the cgroup.
            if one is not None and one.pod_uid == target["uid"]:
                found[one] = ContainerName(target["namespace"], target["pod"], target["container"])
    return {one: name for one, name in found.items() if len(uids[name.namespace, name.pod]) == 1}


def _target(link: str) -> re.Match[str] | None:
    try:
        target = os.readlink(link)  # noqa: PTH115 (no object per link)
    except OSError:
        return None
    return _TARGET.fullmatch("/".join(target.split("/")[-3:]))
