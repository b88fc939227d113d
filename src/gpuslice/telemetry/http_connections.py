"""Accepts connections and answers one request on each, within limits that no client can exceed."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import socket
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus

from gpuslice.codes import Code
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.http_message import (
    LONGEST_HEAD,
    Page,
    Request,
    is_complete,
    parse_request,
    render_answer,
)
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.pace import Pace

log = Logger(__name__)

# A fraction of the descriptors of the process: the others are for its own work.
_DESCRIPTORS_PER_CONNECTION = 8
_FEWEST_CONNECTIONS, _MOST_CONNECTIONS = 4, 64
# Of all clients together. More wait in the queue of the kernel.
_ACCEPTED_PER_SECOND, _ACCEPTED_AT_ONCE = 500.0, 100
# Of one client, and for each path.
_ANSWERS_PER_SECOND, _ANSWERS_AT_ONCE = 20.0, 20
_ACCEPT_RETRY_SECONDS = 1.0
# After the answer, for what the client still sends: a close would discard the answer.
_DRAIN_SECONDS = 1.0
_ACCEPT = "accept"
_ANSWER = "answer"


@dataclass(slots=True)
class _Connection:
    client: str
    # Whether the request is complete.
    has_asked: bool = False


class HttpConnections:
    """`answer` runs on the event loop and must not block."""

    def __init__(self, answer: Callable[[Request], Page], client_seconds: float) -> None:
        self._answer = answer
        # Until the request must be complete, and until the answer must be read.
        self._client_seconds = client_seconds
        # In the order in which they were accepted.
        self._open: dict[asyncio.Task[None], _Connection] = {}
        self._most = most_connections(resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        self._accepting = Pace(_ACCEPTED_PER_SECOND, _ACCEPTED_AT_ONCE)
        self._answering = Pace(_ANSWERS_PER_SECOND, _ANSWERS_AT_ONCE)
        self._conditions = Conditions(log)

    async def accept(self, listener: socket.socket) -> None:
        """Until cancelled. Ends all connections then."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                await asyncio.sleep(self._accepting.delay(_ACCEPT, loop.time()))
                try:
                    connection, address = await loop.sock_accept(listener)
                except OSError as error:  # no descriptor is left, or the client is gone
                    self._conditions.set(
                        _ACCEPT,
                        Code.METRICS_UNAVAILABLE,
                        "cannot accept connections for metrics and probes, retrying",
                        error,
                    )
                    await asyncio.sleep(_ACCEPT_RETRY_SECONDS)
                    continue
                self._conditions.clear(_ACCEPT)
                await self._make_room()
                self._start(connection, str(address[0]))
        finally:
            for task in self._open:
                task.cancel()

    async def _make_room(self) -> None:
        """Ends a connection of the client that has most: it does not keep others out."""
        while len(self._open) >= self._most:
            [(client, _)] = Counter(c.client for c in self._open.values()).most_common(1)
            own = [task for task, c in self._open.items() if c.client == client]
            idle = [task for task in own if not self._open[task].has_asked]
            victim = (idle or own)[0]
            victim.cancel()
            await asyncio.wait([victim])

    def _start(self, connection: socket.socket, client: str) -> None:
        connection.setblocking(False)
        state = _Connection(client)
        task = asyncio.create_task(self._converse(connection, state))
        self._open[task] = state
        # Also if it is cancelled before it begins.
        task.add_done_callback(lambda _: connection.close())
        task.add_done_callback(self._open.pop)

    async def _converse(self, connection: socket.socket, state: _Connection) -> None:
        # Clients that disconnect or are too slow do not affect the agent.
        with contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
            async with asyncio.timeout(self._client_seconds):
                head = await _read_head(connection)
            if not head:
                return
            state.has_asked = True
            answer = await self._answer_to(head, state.client)
            async with asyncio.timeout(self._client_seconds):
                await asyncio.get_running_loop().sock_sendall(connection, answer)
            connection.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(_DRAIN_SECONDS):
                await _drain(connection)

    async def _answer_to(self, head: bytes, client: str) -> bytes:
        if len(head) > LONGEST_HEAD:
            return render_answer(Page(HTTPStatus.BAD_REQUEST, b"the request is too large\n"))
        request = parse_request(head)
        if request is None:
            return render_answer(Page(HTTPStatus.BAD_REQUEST, b"not an HTTP request\n"))
        if request.method not in ("GET", "HEAD"):
            return render_answer(Page(HTTPStatus.METHOD_NOT_ALLOWED, b"use GET\n"))
        now = asyncio.get_running_loop().time()
        # By path: who reads metrics in a loop does not delay the probes of the same client.
        await asyncio.sleep(self._answering.delay(f"{client} {request.path[:64]}", now))
        try:
            page = self._answer(request)
        except Exception as error:  # noqa: BLE001 (a page that fails is no reason to end)
            reason = f"{type(error).__name__}: {error}"
            self._conditions.set(
                _ANSWER, Code.METRICS_UNAVAILABLE, "cannot answer a request", reason
            )
            page = Page(HTTPStatus.INTERNAL_SERVER_ERROR, b"the agent cannot answer\n")
        return render_answer(page, with_body=request.method == "GET")


def most_connections(descriptors: int) -> int:
    """`descriptors`: the limit of the process, negative if there is none."""
    if descriptors < 0:
        return _MOST_CONNECTIONS
    share = descriptors // _DESCRIPTORS_PER_CONNECTION
    return max(_FEWEST_CONNECTIONS, min(_MOST_CONNECTIONS, share))


async def _read_head(connection: socket.socket) -> bytes:
    """Until it is complete or too large, or the client has sent everything."""
    loop = asyncio.get_running_loop()
    head = b""
    while len(head) <= LONGEST_HEAD and not is_complete(head):
        received = await loop.sock_recv(connection, LONGEST_HEAD)
        if not received:
            break
        head += received
    return head


async def _drain(connection: socket.socket) -> None:
    loop = asyncio.get_running_loop()
    while await loop.sock_recv(connection, LONGEST_HEAD):
        pass
