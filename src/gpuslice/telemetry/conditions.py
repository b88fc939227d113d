"""Conditions that last: logged when they begin, when they change and when they end."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.telemetry.logs import Logger, LogLevel


@dataclass(frozen=True, slots=True)
class _Active:
    code: Code
    reason: str


class Conditions:
    """At most one active condition per subject, for example "configuration" or a daemon's name.

    A component that retries reports the condition each time, and the log has one line for it.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._active: dict[str, _Active] = {}

    def __contains__(self, subject: str) -> bool:
        return subject in self._active

    def set(
        self,
        subject: str,
        code: Code,
        event: str,
        reason: object,
        *,
        level: LogLevel = LogLevel.ERROR,
        **fields: object,
    ) -> bool:
        """Returns whether the condition is new, or its reason is."""
        active = _Active(code, str(reason))
        if self._active.get(subject) == active:
            return False
        self._active[subject] = active
        self._log.log(level, code, event, **fields, reason=active.reason)
        return True

    def clear(
        self, subject: str, code: Code | None = None, event: str = "", **fields: object
    ) -> bool:
        """Returns whether the condition was active. The end is logged if a code is given."""
        if self._active.pop(subject, None) is None:
            return False
        if code is not None:
            self._log.info(code, event, **fields)
        return True
