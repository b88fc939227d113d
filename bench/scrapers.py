"""Measures Allocate while clients read metrics in a loop, against an idle agent, in one run.

    python bench/scrapers.py                     eight clients
    python bench/scrapers.py --path /healthz     another page

Rounds alternate, so that load of the machine affects both. The clients are a process of their own.
"""

from __future__ import annotations

import argparse
import contextlib
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Endpoint, Kubelet
from gpuslice_sim.node import create
from gpuslice_sim.process import BackgroundProcess

PROFILE = "a100-80x8"
RESOURCE = "nvidia.com/gpu"
CALLS = 300


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=5, help="rounds of both [5]")
    parser.add_argument("--clients", type=int, default=8, help="clients in a loop [8]")
    parser.add_argument("--path", default="/metrics", help="page that they read [/metrics]")
    parser.add_argument("--scrape", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.scrape:
        scrape_in_a_loop(args.scrape, args.clients)
        return
    idle, scraped = measure(args.rounds, args.clients, args.path)
    print(f"| Allocate p50 | idle | {args.clients} clients on {args.path} in a loop | ratio |")
    print("|---|---:|---:|---:|")
    print(f"| | {idle:.2f} ms | {scraped:.2f} ms | {scraped / idle:.2f} |")


def measure(rounds: int, clients: int, path: str) -> tuple[float, float]:
    """Medians in milliseconds: idle, and while clients read the page."""
    idle: list[float] = []
    scraped: list[float] = []
    with tempfile.TemporaryDirectory(prefix="gs-bench-") as name, running_agent(Path(name)) as run:
        endpoint, address = run
        for _ in range(rounds):
            idle += times(endpoint)
            with scrapers(f"http://{address}{path}", clients):
                scraped += times(endpoint)
    return statistics.median(idle), statistics.median(scraped)


@contextlib.contextmanager
def running_agent(directory: Path) -> Iterator[tuple[Endpoint, str]]:
    node = create(directory / "node", PROFILE)
    kubelet = Kubelet(directory / "dp")
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    program = str(Path(sys.executable).parent / "nvidia-device-plugin")
    argv = [program, "--metrics-address", address, "--log-level", "warning"]
    env = node.env() | {"KUBELET_SOCKET": str(kubelet.directory / "kubelet.sock")}
    with kubelet, BackgroundProcess(argv, env=env, log=directory / "log"):
        yield kubelet.wait_for(RESOURCE, timeout=120), address


@contextlib.contextmanager
def scrapers(url: str, clients: int) -> Iterator[None]:
    argv = [sys.executable, __file__, "--clients", str(clients), "--scrape", url]
    with subprocess.Popen(argv, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # they have begun
        try:
            yield
        finally:
            process.kill()


def scrape_in_a_loop(url: str, clients: int) -> None:
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def scrape() -> None:
        while True:
            with contextlib.suppress(OSError), direct.open(url) as answer:
                answer.read()

    for _ in range(clients):
        threading.Thread(target=scrape, daemon=True).start()
    time.sleep(1)  # a burst is over
    print("scraping", flush=True)
    threading.Event().wait()


def times(endpoint: Endpoint) -> list[float]:
    """Milliseconds of each call."""
    container = api.ContainerAllocateRequest(devices_ids=sorted(endpoint.health)[:1])
    payload = api.AllocateRequest(container_requests=[container]).SerializeToString()
    samples = []
    for _ in range(CALLS):
        began = time.perf_counter()
        endpoint.call_raw("Allocate", payload)
        samples.append(1e3 * (time.perf_counter() - began))
    return samples


if __name__ == "__main__":
    main()
