"""HTTP transport with a rate limit and TCP keepalive."""

from __future__ import annotations

import asyncio
import socket
import ssl

import httpx2

# The defaults of the Go client of Kubernetes.
_REQUESTS_PER_SECOND = 5.0
_BURST = 10

# A watch can be idle for minutes. Without keepalive, a lost connection would not be detected.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Transport(httpx2.AsyncHTTPTransport):
    """Limits the rate of requests: the client restarts a watch without delay when it ends."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, socket_options=_KEEPALIVE)
        self._tokens = float(_BURST)
        self._refilled_at: float | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delay = self._take(asyncio.get_running_loop().time())
        if delay > 0:
            await asyncio.sleep(delay)
        return await super().handle_async_request(request)

    def _take(self, now: float) -> float:
        """Takes a token for one request. Returns the seconds to wait before it is sent."""
        if self._refilled_at is not None:
            refilled = self._tokens + (now - self._refilled_at) * _REQUESTS_PER_SECOND
            self._tokens = min(float(_BURST), refilled)
        self._refilled_at = now
        self._tokens -= 1
        return max(0.0, -self._tokens / _REQUESTS_PER_SECOND)
