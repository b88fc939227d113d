"""Chooses the configuration of this node, and checks that it is a file that can be read."""

from __future__ import annotations

import stat
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from gpuslice.config.errors import ConfigError
from gpuslice.config.regular_file import is_regular, read_regular_file

# Of a ConfigMap, which holds 1 MiB, or of any other file.
MOST_BYTES = 1024 * 1024

_DEFAULT_NAME = "default"
_FILE_TYPES = {
    stat.S_IFIFO: "a pipe, which can be read only once and may never end",
    stat.S_IFDIR: "a directory",
    stat.S_IFSOCK: "a socket",
}


class Fallback(Enum):
    """What to do on a node without the label, if there is no default configuration."""

    NAMED = "named"  # use the configuration with the name `default`
    SINGLE = "single"  # use the only configuration
    EMPTY = "empty"  # use an empty configuration


def choose_config(
    available: Sequence[str],
    label: str | None,
    default: str = "",
    fallbacks: Sequence[Fallback] = (),
) -> str | None:
    """The name of the configuration, or None for an empty one.

    Raises ConfigError if the label names a configuration that does not exist. The fallbacks do not
    apply then: the operator wants another configuration for this node.
    """
    for field, name in (("node label", label), ("default-config", default)):
        if name:
            if name not in available:
                raise ConfigError(
                    field, name, f"there is no such configuration; {_remedy(available)}"
                )
            return name
    for fallback in fallbacks:
        if fallback is Fallback.EMPTY:
            return None
        if fallback is Fallback.NAMED and _DEFAULT_NAME in available:
            return _DEFAULT_NAME
        if fallback is Fallback.SINGLE and len(available) == 1:
            return available[0]
    tried = ", ".join(fallback.value for fallback in fallbacks) or "none is set"
    raise ConfigError(
        "node label",
        label or "",
        "the node does not have the label, default-config is not set and no fallback strategy "
        f"applies ({tried}); {_remedy(available)}",
    )


def check_config_file(path: Path) -> None:
    """Raises ConfigError for files that block a reader or that cannot be read twice."""
    try:
        found = path.stat()
    except OSError:
        return  # reading the file fails with the same reason
    if is_regular(found):
        return
    file_type = _FILE_TYPES.get(stat.S_IFMT(found.st_mode), "a device")
    raise ConfigError(
        "config-file",
        str(path),
        f"it is {file_type}; use a regular file, or /dev/null for an empty configuration",
    )


def read_config_bytes(path: Path) -> bytes:
    """One byte more than a valid file has, if it is too large. Raises ConfigError."""
    check_config_file(path)
    try:
        content = read_regular_file(path, MOST_BYTES + 1)
    except OSError as error:
        raise ConfigError("config-file", str(path), f"cannot read the file: {error}") from error
    if content is None:  # it was replaced a moment ago
        raise ConfigError("config-file", str(path), "use a regular file")
    return content


def _remedy(available: Sequence[str]) -> str:
    if not available:
        return "add a configuration: there is none"
    return f"choose one of {', '.join(sorted(available))}"
