"""How often clients are served."""

from __future__ import annotations

_MOST_CLIENTS = 256
_OTHERS = ""


class Pace:
    """A client that asks more often than `per_second` waits; a burst does not."""

    def __init__(self, per_second: float, burst: int) -> None:
        self._interval = 1.0 / per_second
        self._burst_seconds = (burst - 1) * self._interval
        # Client -> the time at which it has used up what it asked for.
        self._used_until: dict[str, float] = {}

    def delay(self, client: str, now: float) -> float:
        """The seconds to wait before this client is served, which counts from now on."""
        if client not in self._used_until and len(self._used_until) >= _MOST_CLIENTS:
            self._used_until = {c: until for c, until in self._used_until.items() if until > now}
            if len(self._used_until) >= _MOST_CLIENTS:
                client = _OTHERS
        until = max(self._used_until.get(client, now), now)
        self._used_until[client] = until + self._interval
        return max(0.0, until - now - self._burst_seconds)
