"""Whoever reaches the metrics port of an agent: probes work and devices stay healthy."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_address

from .rig import GPU, Rig, eventually
from .test_node_config import get

DESCRIPTORS = 128
# Without a limit, one of these requests costs the agent a descriptor and 300 lines of log.
MOST_LOG_BYTES = 20_000


def limited_plugin(rig: Rig, address: str) -> BackgroundProcess:
    script = f"ulimit -n {DESCRIPTORS}; exec nvidia-device-plugin --metrics-address={address}"
    path = f"{Path(rig.program('nvidia-device-plugin')[0]).parent}:{os.environ['PATH']}"
    return rig.run(["/bin/bash", "-c", script], name="plugin", env={"PATH": path})


def descriptors(agent: BackgroundProcess) -> int:
    return len(list(Path(f"/proc/{agent.pid}/fd").iterdir()))


def connect(address: str) -> socket.socket:
    host, _, port = address.partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def send(address: str, request: bytes) -> bytes:
    """The first bytes of the answer."""
    with contextlib.suppress(ConnectionError), connect(address) as connection:
        connection.sendall(request)
        return connection.recv(64)
    return b""


def test_hostile_clients_do_not_take_the_devices_or_the_probes_of_an_agent(rig: Rig) -> None:
    address = free_address()
    with limited_plugin(rig, address) as agent, contextlib.ExitStack() as stack:
        rig.wait_for_resources(GPU)
        eventually(lambda: get(address, "/readyz")[0] == 200, "ready")
        healthy, before, log = rig.healthy(GPU), descriptors(agent), len(agent.output())
        for _ in range(500):
            stack.enter_context(connect(address))
        assert get(address, "/healthz")[0] == 200
        slow = [stack.enter_context(connect(address)) for _ in range(50)]
        for one in slow:
            with contextlib.suppress(OSError):
                one.send(b"GET /metr")
        assert get(address, "/healthz")[0] == 200
        bad_accept = b"GET /metrics HTTP/1.1\r\nAccept: text/plain; version=abc\r\n\r\n"
        for _ in range(DESCRIPTORS + 20):
            assert send(address, bad_accept).startswith(b"HTTP/1.1 200")
        assert send(address, b"x" * 1_000_000 + b"\r\n\r\n")[:12] in (b"HTTP/1.1 400", b"")
        assert send(address, b"GET /healthz HTTP/1.1\r\n\r\n" * 100).startswith(b"HTTP/1.1 200")
        for _ in range(50):
            send(address, os.urandom(1000) + b"\r\n\r\n")
        assert get(address, "/healthz")[0] == 200
        assert descriptors(agent) - before <= DESCRIPTORS // 8 + 2
        assert rig.healthy(GPU) == healthy
        assert rig.allocate(GPU, sorted(healthy)[0])
        assert len(agent.output()) - log < MOST_LOG_BYTES
        assert "Traceback" not in agent.output()
        stack.close()
        eventually(lambda: descriptors(agent) <= before, "no descriptor is left behind")
