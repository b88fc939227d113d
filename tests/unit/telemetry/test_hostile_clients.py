"""Clients of metrics and probes that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.config.timing import Timing
from gpuslice.telemetry.http_connections import most_connections
from gpuslice.telemetry.http_server import metrics_at
from gpuslice.telemetry.metrics import Recorder
from gpuslice.telemetry.prometheus import Exposition
from tests.surroundings import free_address

MOST = most_connections(1 << 20)


def serve(scenario: Callable[[str, int], Awaitable[None]], **times: float) -> None:
    async def main() -> None:
        address = free_address()
        host, _, port = address.partition(":")
        async with metrics_at(address, Timing(**times)), asyncio.timeout(60):
            await scenario(host, int(port))

    asyncio.run(main())


async def ask(host: str, port: int, request: bytes) -> bytes:
    """The answer, until the server closes the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    with contextlib.closing(writer):
        writer.write(request)
        return await reader.read()


async def probe(host: str, port: int) -> bytes:
    return await ask(host, port, b"GET /healthz HTTP/1.1\r\n\r\n")


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain; version=abc",
        "application/openmetrics-text; version=abc",
        "application/openmetrics-text; version=9.9.9; escaping=\x01",
        "text/plain;version=1.0.0;escaping=allow-utf-8",
        ";;;,,,=",
        "\xff" * 100,
        "application/xml",
        "*/*",
        "",
    ],
)
def test_any_accept_header_gets_metrics(accept: str) -> None:
    async def scenario(host: str, port: int) -> None:
        request = f"GET /metrics HTTP/1.1\r\nAccept: {accept}\r\n\r\n".encode("latin-1")
        answer = await ask(host, port, request)
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert b"Content-Type: text/plain; version=0.0.4" in answer
        assert b"gpuslice_build_info" in answer

    serve(scenario)


def test_a_header_cannot_add_headers_to_the_answer() -> None:
    async def scenario(host: str, port: int) -> None:
        accept = b"application/openmetrics-text; version=1.0.0\nX-Added: 1"
        answer = await ask(host, port, b"GET /metrics HTTP/1.1\r\nAccept: %b\r\n\r\n" % accept)
        assert b"X-Added" not in answer.partition(b"\r\n\r\n")[0]

    serve(scenario)


@pytest.mark.parametrize(
    "request_bytes",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 1_000_000,
        b"\0" * 100_000,
        os.urandom(50_000),
        b"GET /metrics\r\n\r\n",
        b"GET /metrics HTTP/2.0\r\n\r\n",
        b"\r\n\r\n",
    ],
    ids=["long header", "zeros", "garbage", "HTTP/0.9", "HTTP/2", "nothing"],
)
def test_bad_input_is_answered(request_bytes: bytes) -> None:
    async def scenario(host: str, port: int) -> None:
        assert (await ask(host, port, request_bytes)).startswith(b"HTTP/1.1 400 ")

    serve(scenario)


def test_of_several_requests_on_one_connection_the_first_is_answered() -> None:
    async def scenario(host: str, port: int) -> None:
        answer = await ask(host, port, b"GET /healthz HTTP/1.1\r\n\r\n" * 5000)
        assert answer.count(b"HTTP/1.1 200") == 1

    serve(scenario)


def test_idle_connections_do_not_keep_others_out_and_leave_nothing_behind() -> None:
    async def scenario(host: str, port: int) -> None:
        before = descriptors()
        idle = [socket.create_connection((host, port)) for _ in range(MOST)]
        more = []
        for _ in range(MOST):
            more.append(socket.create_connection((host, port)))
            await asyncio.sleep(0)
            assert (await probe(host, port)).startswith(b"HTTP/1.1 200")
        assert descriptors() - before - len(idle) - len(more) <= MOST + 2
        for one in (*idle, *more):
            one.close()
        while descriptors() > before:  # noqa: ASYNC110 (nothing to wait for)
            await asyncio.sleep(0.01)

    serve(scenario)


def test_a_client_that_is_too_slow_is_disconnected() -> None:
    async def scenario(host: str, port: int) -> None:
        reader, writer = await asyncio.open_connection(host, port)
        with contextlib.suppress(ConnectionError):
            while not reader.at_eof():
                writer.write(b"G")
                await asyncio.sleep(0.02)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(0.01):
                        await reader.read(1)
        writer.close()
        assert (await probe(host, port)).startswith(b"HTTP/1.1 200")

    serve(scenario, http_client=0.2)


def test_a_client_that_does_not_read_is_disconnected() -> None:
    async def scenario(host: str, port: int) -> None:
        before = descriptors()
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
            await asyncio.to_thread(deaf.connect, (host, port))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            while descriptors() > before + 1:  # noqa: ASYNC110 (nothing to wait for)
                await asyncio.sleep(0.01)

    serve(scenario, http_client=0.2)


def test_without_descriptors_it_waits_logs_once_and_recovers(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def scenario(host: str, port: int) -> None:
        client = await asyncio.to_thread(socket.create_connection, (host, port))
        client.close()
        with socket.socket() as late, contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                while True:
                    stack.callback(os.close, os.open("/dev/null", os.O_RDONLY))
            late.setblocking(False)
            await asyncio.get_running_loop().sock_connect(late, (host, port))
            late.send(b"GET /healthz HTTP/1.1\r\n\r\n")
            await asyncio.sleep(0.3)
            stack.close()
            assert (await asyncio.get_running_loop().sock_recv(late, 100)).startswith(b"HTTP/1.1")
        codes = [getattr(record, "gpuslice_code", None) for record in caplog.records]
        assert codes.count(Code.METRICS_UNAVAILABLE) == 1

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(
        resource.RLIMIT_NOFILE, (len(list(Path("/proc/self/fd").iterdir())) + 40, hard)
    )
    try:
        serve(scenario)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_metrics_are_rendered_once_however_often_they_are_read() -> None:
    recorder = Recorder()
    exposition = Exposition(recorder, cache_seconds=3600)
    first = exposition.render("")
    recorder.allocated("nvidia.com/gpu", True)
    assert exposition.render("")[0] is first[0]
    assert exposition.render("application/openmetrics-text")[0] is not first[0]
    assert Exposition(recorder, cache_seconds=0).render("") != first


def test_a_client_that_asks_in_a_loop_waits_and_its_probes_do_not() -> None:
    async def scenario(host: str, port: int) -> None:
        scrapes = probes = 0

        async def scrape() -> None:
            nonlocal scrapes
            while True:
                await ask(host, port, b"GET /metrics HTTP/1.1\r\n\r\n")
                scrapes += 1

        began = time.monotonic()
        scrapers = [asyncio.create_task(scrape()) for _ in range(8)]
        while scrapes < 25:
            assert (await probe(host, port)).startswith(b"HTTP/1.1 200")
            probes += 1
            await asyncio.sleep(0.05)
        # 20 at once, and 20 in each second.
        assert scrapes <= 20 + 20 * (time.monotonic() - began) + 1
        assert probes > 1
        for scraper in scrapers:
            scraper.cancel()
        await asyncio.wait(scrapers)

    serve(scenario)


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))
