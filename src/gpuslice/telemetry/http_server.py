"""A small HTTP server for the kubelet's probes and for Prometheus."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import TYPE_CHECKING

from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.timing import Timing
from gpuslice.config.value_parsers import parse_address
from gpuslice.telemetry.http_connections import HttpConnections
from gpuslice.telemetry.http_message import Page, Request
from gpuslice.telemetry.listen_address import hosts_to_listen_on
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics, NoMetrics, Recorder

if TYPE_CHECKING:
    from gpuslice.telemetry.prometheus import Exposition

log = Logger(__name__)

# Connections that the kernel keeps until the agent accepts them.
_BACKLOG = 128


@contextlib.asynccontextmanager
async def metrics_at(address: str | None, timing: Timing | None = None) -> AsyncIterator[Metrics]:
    """Serves metrics and probes at `host:port`. Without an address, nothing is recorded.

    Raises ConfigError if the address cannot be used.
    """
    if not address:
        yield NoMetrics()
        return
    times = timing or Timing()
    # Imported here: an agent without metrics saves the memory.
    from gpuslice.telemetry.prometheus import Exposition

    recorder = Recorder()
    pages = _Pages(recorder, Exposition(recorder, times.metrics_cache))
    connections = HttpConnections(pages.answer, times.http_client)
    with contextlib.ExitStack() as stack:
        listeners = [stack.enter_context(one) for one in await _listen(address)]
        accepting = [asyncio.create_task(connections.accept(one)) for one in listeners]
        names = (one.getsockname() for one in listeners)
        log.info(
            Code.METRICS_SERVED,
            "serving metrics and probes",
            address=",".join(f"{host}:{port}" for host, port, *_ in names),
        )
        try:
            yield recorder
        finally:
            for task in accepting:
                task.cancel()
            await asyncio.wait(accepting)


class _Pages:
    def __init__(self, recorder: Recorder, exposition: Exposition) -> None:
        self._recorder = recorder
        self._exposition = exposition

    def answer(self, request: Request) -> Page:
        match request.path:
            case "/metrics":
                return Page(HTTPStatus.OK, *self._exposition.render(request.accept))
            case "/healthz":
                # The response shows that the event loop of the agent runs.
                return Page(HTTPStatus.OK, b"ok\n")
            case "/readyz":
                problem = self._recorder.why_not_ready()
                if problem is None:
                    return Page(HTTPStatus.OK, b"ok\n")
                return Page(HTTPStatus.SERVICE_UNAVAILABLE, f"{problem}\n".encode())
            case _:
                return Page(HTTPStatus.NOT_FOUND, b"not found: use /metrics, /healthz or /readyz\n")


async def _listen(address: str) -> list[socket.socket]:
    """Raises ConfigError."""
    host, port = parse_address("metrics-address", address)
    loop = asyncio.get_running_loop()
    with contextlib.ExitStack() as opened:
        listeners: list[socket.socket] = []
        try:
            for name in hosts_to_listen_on(host, os.environ):
                for family, _, _, _, place in await loop.getaddrinfo(
                    name, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
                ):
                    listener = socket.create_server(place, family=family, backlog=_BACKLOG)
                    listeners.append(opened.enter_context(listener))
                    listener.setblocking(False)
        except (OSError, UnicodeError) as error:  # UnicodeError: an invalid host name
            reason = getattr(error, "strerror", None) or error
            remedy = f"the agent cannot listen on it ({reason}); use a free address and port"
            raise ConfigError("metrics-address", address, remedy) from error
        opened.pop_all()
        return listeners
