"""Measures device plugins against the kubelet stand-in: any command, one client, turn by turn.

    python bench/plugin.py                         gpuslice, NVIDIA's plugin and a bare gRPC server
    python bench/plugin.py -- COMMAND ARG …        any plugin, as it stands

A command is run on a simulated node (LD_LIBRARY_PATH, PATH and KUBELET_SOCKET are set) with a
private /var/lib/kubelet/device-plugins where root may mount one. In its arguments {node},
{kubelet_socket} and {directory} are replaced. The first resource it registers is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Endpoint, Kubelet
from gpuslice_sim.node import SimNode, create
from gpuslice_sim.process import BackgroundProcess

HERE = Path(__file__).resolve().parent
PROFILE = "a100-80x8"
GPUS = 8
GPU_MIB = 81920
SIZES = (32, 640, 8000, 60000)
# A pod of this many units.
UNITS = 4
CALLS = {"Allocate": 300, "GetPreferredAllocation": 300}
# Messages of several MB: fewer calls give as steady a median.
CALLS_WHEN_LARGE = {"Allocate": 300, "GetPreferredAllocation": 30}
LARGE = 4000
# Where plugins put their sockets, also those that cannot be told another place.
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"
MARK = "<!-- bench/plugin.py -->"


@dataclass(frozen=True, slots=True)
class Contender:
    name: str
    # devices wanted, directory for files -> command line
    command: Callable[[int, Path], list[str]]
    private_directory: bool = False


@dataclass(slots=True)
class Figures:
    """Samples of all rounds; times in milliseconds."""

    devices: int = 0
    list_bytes: int = 0
    registered: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)
    calls: dict[str, list[float]] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="turns of every contender [3]")
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)), help="device counts")
    parser.add_argument(
        "--without-nvidia", action="store_true", help="do not build NVIDIA's plugin"
    )
    parser.add_argument("--update", type=Path, help=f"write the tables into FILE after {MARK}")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ARG …")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if command:
        contenders = [Contender(Path(command[0]).name, lambda _, __: command, os.geteuid() == 0)]
        sizes = [0]
    else:
        contenders = [GPUSLICE, BARE] + ([] if args.without_nvidia else [nvidia()])
        sizes = [int(size) for size in args.sizes.split(",")]
    tables = [table(compare(contenders, size, args.rounds)) for size in sizes]
    report = "\n".join(tables)
    print(report)
    if args.update:
        head, _, _ = args.update.read_text().partition(MARK)
        args.update.write_text(f"{head}{MARK}\n\n{report}")


# Contenders


def unit_for(devices: int) -> str:
    return f"{max(1, round(GPUS * GPU_MIB / devices))}MiB"


GPUSLICE = Contender(
    "gpuslice",
    lambda devices, _: [
        str(Path(sys.executable).parent / "gpuslice"),
        "agent",
        "--memory-unit",
        unit_for(devices),
        "--log-level",
        "warning",
    ],
)
BARE = Contender(
    "bare grpcio",
    lambda devices, _: [
        sys.executable,
        str(HERE / "bare_plugin.py"),
        "{kubelet_socket}",
        str(devices),
    ],
)


def nvidia() -> Contender:
    """NVIDIA's plugin with as many time-slicing replicas."""
    from tests.peers.build import PeerBuildError, build_peers

    try:
        program = str(build_peers(["nvidia-device-plugin"]).device_plugin)
    except PeerBuildError as error:
        raise SystemExit(f"{error}\n(or measure with --without-nvidia)") from error
    if os.geteuid() != 0:
        raise SystemExit(
            "NVIDIA's plugin has a fixed socket directory, so it is run in a mount namespace, "
            "which needs root (or measure with --without-nvidia)"
        )

    def command(devices: int, directory: Path) -> list[str]:
        config = directory / "nvidia.json"
        resources = [{"name": "nvidia.com/gpu", "replicas": devices // GPUS}]
        config.write_text(
            json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": resources}}})
        )
        return [program, "--config-file", str(config)]

    return Contender("NVIDIA 0.19.0", command, private_directory=True)


# Measuring


def compare(contenders: Sequence[Contender], devices: int, rounds: int) -> dict[str, Figures]:
    figures = {contender.name: Figures() for contender in contenders}
    for turn in range(rounds):
        for contender in contenders:
            print(
                f"{devices or 'all'} devices, round {turn + 1}: {contender.name}", file=sys.stderr
            )
            directory = Path(tempfile.mkdtemp(prefix="gs-bench-"))
            try:
                measure(contender, devices, directory, figures[contender.name])
            finally:
                shutil.rmtree(directory)
    return figures


def measure(contender: Contender, devices: int, directory: Path, figures: Figures) -> None:
    node = create(directory / "node", PROFILE)
    kubelet = Kubelet(directory / "dp")
    values = {
        "node": str(node.directory),
        "kubelet_socket": str(kubelet.directory / "kubelet.sock"),
        "directory": str(directory),
    }
    argv = [part.format(**values) for part in contender.command(devices, directory)]
    if contender.private_directory:
        argv = node.namespace_command(argv, {DEVICE_PLUGINS: kubelet.directory})
    with kubelet:
        began = time.perf_counter()
        with BackgroundProcess(
            argv, env=environment(node, kubelet), log=directory / "log"
        ) as plugin:
            endpoint = first_endpoint(kubelet, plugin)
            figures.registered.append(1e3 * (time.perf_counter() - began))
            kubelet.wait_for(endpoint.resource, timeout=120)
            figures.listed.append(1e3 * (time.perf_counter() - began) - figures.registered[-1])
            ask(endpoint, sorted(kubelet.devices(endpoint.resource)), figures)
            figures.rss_mib.append(plugin.rss_bytes() / (1 << 20))
            figures.list_bytes = endpoint.last_list_bytes


def environment(node: SimNode, kubelet: Kubelet) -> dict[str, str]:
    return node.env() | {"KUBELET_SOCKET": str(kubelet.directory / "kubelet.sock")}


def first_endpoint(kubelet: Kubelet, plugin: BackgroundProcess) -> Endpoint:
    deadline = time.monotonic() + 60
    while not kubelet.resources():
        if plugin.returncode is not None or time.monotonic() > deadline:
            raise SystemExit(f"the plugin did not register; its output:\n{plugin.output()}")
        time.sleep(0.001)
    endpoint = kubelet.endpoint(kubelet.resources()[0])
    assert endpoint is not None
    return endpoint


def ask(endpoint: Endpoint, ids: list[str], figures: Figures) -> None:
    figures.devices = len(ids)
    allocate = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=ids[:UNITS])]
    )
    shuffled = list(ids)
    random.Random(1).shuffle(shuffled)
    prefer = api.PreferredAllocationRequest(
        container_requests=[
            api.ContainerPreferredAllocationRequest(
                available_deviceIDs=shuffled, allocation_size=UNITS
            )
        ]
    )
    calls = CALLS_WHEN_LARGE if len(ids) > LARGE else CALLS
    for method, request in (("Allocate", allocate), ("GetPreferredAllocation", prefer)):
        payload = request.SerializeToString()
        endpoint.call_raw(method, payload)  # connections and caches are warm from here on
        samples = figures.calls.setdefault(method, [])
        for _ in range(calls[method]):
            began = time.perf_counter()
            endpoint.call_raw(method, payload)
            samples.append(1e3 * (time.perf_counter() - began))


# Reporting


def table(results: dict[str, Figures]) -> str:
    some = next(iter(results.values()))
    lines = [
        f"### {some.devices:,} devices",
        "",
        "| | " + " | ".join(results) + " |",
        "|---|" + "---:|" * len(results),
    ]
    rows: list[tuple[str, Callable[[Figures], str]]] = [
        ("start to registered", lambda f: ms(statistics.median(f.registered))),
        ("registered to first list", lambda f: ms(statistics.median(f.listed))),
        ("list", lambda f: f"{f.list_bytes:,} B"),
    ]
    for method in CALLS:
        rows.append((f"{method} p50", lambda f, m=method: ms(percentile(f.calls[m], 50))))  # type: ignore[misc]
        rows.append((f"{method} p99", lambda f, m=method: ms(percentile(f.calls[m], 99))))  # type: ignore[misc]
    rows.append(("RSS", lambda f: f"{statistics.median(f.rss_mib):.0f} MiB"))
    for label, figure in rows:
        lines.append(f"| {label} | " + " | ".join(figure(f) for f in results.values()) + " |")
    return "\n".join(lines) + "\n"


def percentile(samples: list[float], percent: int) -> float:
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


def ms(value: float) -> str:
    return f"{value:.2f} ms" if value < 10 else f"{value:.0f} ms"


if __name__ == "__main__":
    main()
