"""Which of several configurations counts on this node."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from gpuslice.config.errors import ConfigError

_NAMED = "default"


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


def _list(available: Sequence[str]) -> str:
    return f"choose one of {', '.join(sorted(available))}" if available else "none is there at all"
