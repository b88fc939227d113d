"""Which of several configurations counts on this node, and what may be one."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from gpuslice.config.errors import ConfigError

_NAMED = "default"
_NULL_DEVICE = os.makedev(1, 3)
_KINDS = {
    stat.S_IFIFO: "a pipe, which may never end and can be read only once",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


class Fallback(Enum):
    """What to do on a node whose label names no configuration."""

    NAMED = "named"  # take the one that is called `default`
    SINGLE = "single"  # take the only one there is
    EMPTY = "empty"  # do without


def choose_config(
    available: Sequence[str],
    label: str | None,
    default: str = "",
    fallbacks: Sequence[Fallback] = (),
) -> str | None:
    """The name of the configuration, or None for the empty one.

    A label that names nothing is an error and not a reason to fall back: someone wanted something
    else for this node. The caller keeps what it has until the label is right.
    """
    for field, name in (("node label", label), ("default-config", default)):
        if name:
            if name not in available:
                raise ConfigError(
                    field, name, f"there is no such configuration; {_list(available)}"
                )
            return name
    for fallback in fallbacks:
        if fallback is Fallback.EMPTY:
            return None
        if fallback is Fallback.NAMED and _NAMED in available:
            return _NAMED
        if fallback is Fallback.SINGLE and len(available) == 1:
            return available[0]
    tried = ", ".join(fallback.value for fallback in fallbacks) or "none is set"
    raise ConfigError(
        "node label",
        label or "",
        f"the node has none, default-config is not set and no fallback helps ({tried}); "
        f"{_list(available)}",
    )


def check_config_file(path: Path) -> None:
    """Raises ConfigError for what cannot be read whole, and again, without waiting for anybody.

    What cannot be looked at is left to who reads it.
    """
    try:
        found = path.stat()
    except OSError:
        return
    is_null = stat.S_ISCHR(found.st_mode) and found.st_rdev == _NULL_DEVICE
    if stat.S_ISREG(found.st_mode) or is_null:
        return
    kind = _KINDS.get(stat.S_IFMT(found.st_mode), "a device")
    raise ConfigError(
        "config-file",
        str(path),
        f"it is {kind}; give a regular file, or /dev/null for an empty one",
    )


def _list(available: Sequence[str]) -> str:
    return f"choose one of {', '.join(sorted(available))}" if available else "none is there at all"
