"""Lists of XIDs, as in DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.config.option_values import OptionValue
from gpuslice.config.value_parsers import split_list

_EVERY = frozenset({"all", "xids"})
_MOST_DIGITS = 9


@dataclass(frozen=True, slots=True)
class XidList:
    xids: frozenset[int] = frozenset()
    every: bool = False
    # An entry that is not valid is skipped with a warning: a typo must not take the GPUs of a node
    # out of service.
    warnings: tuple[str, ...] = ()


def parse_xid_list(value: OptionValue | None) -> XidList:
    if value is None:
        return XidList()
    words = split_list(value.text.lower())
    return XidList(
        xids=frozenset(int(word) for word in words if _is_xid(word)),
        every=any(word in _EVERY for word in words),
        warnings=tuple(
            f"{value.source}: {word!r} is not valid and is skipped: use XID numbers, or all"
            for word in words
            if not _is_xid(word) and word not in _EVERY
        ),
    )


def _is_xid(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS
