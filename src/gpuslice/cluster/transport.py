"""How requests leave: not too many a second, over connections whose death is noticed."""

from __future__ import annotations

import asyncio
import socket
import ssl

import httpx2

# Go's Kubernetes client allows itself the same.
_REQUESTS_PER_SECOND = 5.0
_BURST = 10

# A watch is silent for minutes; without these the death of its peer would be silent, too.
_KEEPALIVE = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)


class Transport(httpx2.AsyncHTTPTransport):
    """Paces requests, since a watch that ends at once is begun anew at once by the client."""

    def __init__(self, tls: ssl.SSLContext) -> None:
        super().__init__(verify=tls, socket_options=_KEEPALIVE)
        self._allowed = float(_BURST)
        self._counted_at: float | None = None

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        delay = self._take(asyncio.get_running_loop().time())
        if delay > 0:
            await asyncio.sleep(delay)
        return await super().handle_async_request(request)

    def _take(self, now: float) -> float:
        """Takes one request from the allowance; returns how long it has to wait."""
        if self._counted_at is not None:
            grown = self._allowed + (now - self._counted_at) * _REQUESTS_PER_SECOND
            self._allowed = min(float(_BURST), grown)
        self._counted_at = now
        self._allowed -= 1
        return max(0.0, -self._allowed / _REQUESTS_PER_SECOND)
