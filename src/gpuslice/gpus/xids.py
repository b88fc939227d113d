"""Which of the driver's errors (XIDs) make a GPU unusable."""

from __future__ import annotations

from gpuslice.config.settings import HealthSettings

# Errors of an application. They do not affect the GPU.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


def is_fatal(xid: int, settings: HealthSettings) -> bool:
    """An XID in `fatal` is fatal even if another setting ignores it."""
    if not settings.enabled:
        return False
    if settings.fatal is None or xid in settings.fatal:
        return True
    return not settings.ignore_all and xid not in APPLICATION_XIDS | settings.ignored


def is_watched(settings: HealthSettings) -> bool:
    """Whether any XID can be fatal."""
    return settings.enabled and (not settings.ignore_all or settings.fatal != frozenset())
