"""A small HTTP server for the kubelet's probes and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.value_parsers import parse_address
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics, NoMetrics, Recorder

if TYPE_CHECKING:
    from gpuslice.telemetry.prometheus import Exposition

log = Logger(__name__)

_PLAIN = "text/plain; charset=utf-8"
_LONGEST_REQUEST = 16 * 1024
# A slower client is disconnected.
_TIMEOUT_SECONDS = 10.0


@contextlib.asynccontextmanager
async def metrics_at(address: str | None) -> AsyncIterator[Metrics]:
    """Serves metrics and probes at `host:port`. Without an address, nothing is recorded.

    Raises ConfigError if the address cannot be used.
    """
    if not address:
        yield NoMetrics()
        return
    host, port = parse_address("metrics-address", address)
    # Imported here: an agent without metrics saves the memory.
    from gpuslice.telemetry.prometheus import Exposition

    recorder = Recorder()
    pages = _Pages(recorder, Exposition(recorder))
    try:
        server = await asyncio.start_server(pages.serve, host, port, limit=_LONGEST_REQUEST)
    except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
        reason = getattr(error, "strerror", None) or error
        remedy = f"the agent cannot listen on it ({reason}); use a free address and port"
        raise ConfigError("metrics-address", address, remedy) from error
    log.info(Code.METRICS_SERVED, "serving metrics and probes", address=address)
    try:
        yield recorder
    finally:
        server.close()
        pages.close()


@dataclass(frozen=True, slots=True)
class _Page:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN


class _Pages:
    def __init__(self, recorder: Recorder, exposition: Exposition) -> None:
        self._recorder = recorder
        self._exposition = exposition
        self._open: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: clients send one every few seconds at most."""
        self._open.add(writer)
        # Clients that disconnect or are too slow do not affect the agent.
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, TimeoutError):
            async with asyncio.timeout(_TIMEOUT_SECONDS):
                try:
                    head = await reader.readuntil(b"\r\n\r\n")
                except asyncio.LimitOverrunError:
                    head = b""
                method, path, accept = _parse(head)
                page = self._page(method, path, accept)
                writer.write(_response(page, with_body=method != "HEAD"))
                await writer.drain()
        self._open.discard(writer)
        writer.close()

    def close(self) -> None:
        for writer in self._open:
            writer.close()

    def _page(self, method: str, path: str, accept: str) -> _Page:
        if not method:
            return _Page(HTTPStatus.BAD_REQUEST, b"not an HTTP request\n")
        if method not in ("GET", "HEAD"):
            return _Page(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n")
        match path:
            case "/metrics":
                return _Page(HTTPStatus.OK, *self._exposition.render(accept))
            case "/healthz":
                # The response shows that the event loop of the agent runs.
                return _Page(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                problem = self._recorder.why_not_ready()
                if problem is None:
                    return _Page(HTTPStatus.OK, b"ok\n")
                return _Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n".encode())
            case _:
                return _Page(
                    HTTPStatus.NOT_FOUND, b"not found: use /metrics, /healthz or /readyz\n"
                )


def _parse(head: bytes) -> tuple[str, str, str]:
    """Method, path and Accept header; empty if this is not an HTTP request."""
    first, *fields = head.decode("latin-1").split("\r\n")
    match = re.fullmatch(r"([A-Z]+) ([^ ?]+)(?:\?[^ ]*)? HTTP/1\.[01]", first)
    if match is None:
        return "", "", ""
    accept = ""
    for field in fields:
        name, _, value = field.partition(":")
        if name.lower() == "accept":
            accept = value.strip()
    return match[1], match[2], accept


def _response(page: _Page, *, with_body: bool) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")
