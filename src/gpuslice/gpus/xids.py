"""Which of the driver's errors (XIDs) make a GPU unusable."""

from __future__ import annotations

from gpuslice.config.settings import HealthSettings

# Errors of an application, not of the GPU: the next process finds it in order.
APPLICATION_XIDS = frozenset({13, 31, 43, 45, 68, 109})


def is_fatal(xid: int, settings: HealthSettings) -> bool:
    """What is named as fatal is so, whatever else says that it may be ignored."""
    if not settings.enabled:
        return False
    if settings.fatal is None or xid in settings.fatal:
        return True
    return not settings.ignore_all and xid not in APPLICATION_XIDS | settings.ignored


def is_watched(settings: HealthSettings) -> bool:
    """Whether anything could be fatal at all."""
    return settings.enabled and (not settings.ignore_all or settings.fatal != frozenset())
