"""Which XIDs count, as DP_DISABLE_HEALTHCHECKS and DP_ENABLE_HEALTHCHECKS say it."""

from __future__ import annotations

from gpuslice.config.option_values import OptionValue, parts
from gpuslice.config.settings import HealthSettings

_EVERY = frozenset({"all", "xids"})
_MOST_DIGITS = 9


def health_settings(
    disabled: OptionValue | None, enabled: OptionValue | None, *, watch: bool
) -> tuple[HealthSettings, tuple[str, ...]]:
    """Together with a warning for every entry that is not understood: one typo must not cost the
    node its GPUs."""
    ignored, ignore_all, odd = _xids(disabled)
    fatal, every, also_odd = _xids(enabled)
    settings = HealthSettings(
        enabled=watch,
        ignored=ignored,
        fatal=None if every else fatal,
        ignore_all=ignore_all,
    )
    return settings, (*odd, *also_odd)


def _xids(said: OptionValue | None) -> tuple[frozenset[int], bool, tuple[str, ...]]:
    if said is None:
        return frozenset(), False, ()
    words = parts(said.text.lower())
    numbers = frozenset(int(word) for word in words if _is_xid(word))
    odd = tuple(
        f"{said.source}: {word!r} is passed over: use numbers of XIDs, or all"
        for word in words
        if not _is_xid(word) and word not in _EVERY
    )
    return numbers, any(word in _EVERY for word in words), odd


def _is_xid(word: str) -> bool:
    return word.isascii() and word.isdecimal() and len(word) <= _MOST_DIGITS
