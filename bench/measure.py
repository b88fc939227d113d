"""Measures one device plugin on a simulated node, with the simulated kubelet as its client."""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Endpoint, Kubelet
from gpuslice_sim.node import SimNode, create
from gpuslice_sim.process import BackgroundProcess

# The devices of one pod.
UNITS = 4
CALLS = 300
# With messages of several MB, fewer calls give an equally stable median.
CALLS_WHEN_LARGE = 30
LARGE = 4000
# A limit for calls that take seconds.
ENOUGH_SECONDS = 2.0
# The directory of sockets; for some plugins it is fixed.
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"


@dataclass(frozen=True, slots=True)
class Case:
    """A node, the number of devices that a plugin advertises, and the requests."""

    profile: str
    gpus: int
    # 0: the plugin decides.
    devices: int = 0
    # Sizes of GetPreferredAllocation.
    sizes: tuple[int, ...] = (UNITS,)

    @property
    def per_gpu(self) -> int:
        return self.devices // self.gpus

    def __str__(self) -> str:
        return f"{self.gpus} GPUs, {self.devices or 'all'} devices"


@dataclass(frozen=True, slots=True)
class Candidate:
    name: str
    # case, directory for files -> command line
    command: Callable[[Case, Path], list[str]]
    private_directory: bool = False


@dataclass(slots=True)
class Figures:
    """Samples of all rounds. Times are in milliseconds."""

    devices: int = 0
    list_bytes: int = 0
    registered: list[float] = field(default_factory=list)
    listed: list[float] = field(default_factory=list)
    allocate: list[float] = field(default_factory=list)
    # By size.
    prefer: dict[int, list[float]] = field(default_factory=dict)
    rss_mib: list[float] = field(default_factory=list)


def compare(candidates: Sequence[Candidate], case: Case, rounds: int) -> dict[str, Figures]:
    """Alternates between the plugins, so that load of the machine affects all of them."""
    figures = {candidate.name: Figures() for candidate in candidates}
    for turn in range(rounds):
        for candidate in candidates:
            print(f"{case}, round {turn + 1}: {candidate.name}", file=sys.stderr)
            directory = Path(tempfile.mkdtemp(prefix="gs-bench-"))
            try:
                _measure(candidate, case, directory, figures[candidate.name])
            finally:
                shutil.rmtree(directory)
    return figures


def _measure(candidate: Candidate, case: Case, directory: Path, figures: Figures) -> None:
    node = create(directory / "node", case.profile)
    kubelet = Kubelet(directory / "dp")
    values = {
        "node": str(node.directory),
        "kubelet_socket": str(kubelet.directory / "kubelet.sock"),
        "directory": str(directory),
    }
    argv = [part.format(**values) for part in candidate.command(case, directory)]
    if candidate.private_directory:
        argv = node.namespace_command(argv, {DEVICE_PLUGINS: kubelet.directory})
    with kubelet:
        began = time.perf_counter()
        with BackgroundProcess(
            argv, env=_environment(node, kubelet), log=directory / "log"
        ) as plugin:
            endpoint = _first_endpoint(kubelet, plugin)
            figures.registered.append(1e3 * (time.perf_counter() - began))
            kubelet.wait_for(endpoint.resource, timeout=120)
            figures.listed.append(1e3 * (time.perf_counter() - began) - figures.registered[-1])
            _measure_calls(
                endpoint, sorted(kubelet.devices(endpoint.resource)), case.sizes, figures
            )
            figures.rss_mib.append(plugin.rss_bytes() / (1 << 20))
            figures.list_bytes = endpoint.last_list_bytes


def _environment(node: SimNode, kubelet: Kubelet) -> dict[str, str]:
    return node.env() | {"KUBELET_SOCKET": str(kubelet.directory / "kubelet.sock")}


def _first_endpoint(kubelet: Kubelet, plugin: BackgroundProcess) -> Endpoint:
    deadline = time.monotonic() + 60
    while not kubelet.resources():
        if plugin.returncode is not None or time.monotonic() > deadline:
            raise SystemExit(f"the plugin did not register; its output:\n{plugin.output()}")
        time.sleep(0.001)
    endpoint = kubelet.endpoint(kubelet.resources()[0])
    assert endpoint is not None
    return endpoint


def _measure_calls(
    endpoint: Endpoint, ids: list[str], sizes: Sequence[int], figures: Figures
) -> None:
    figures.devices = len(ids)
    allocate = api.AllocateRequest(
        container_requests=[api.ContainerAllocateRequest(devices_ids=ids[:UNITS])]
    )
    figures.allocate += _times(endpoint, "Allocate", allocate.SerializeToString(), CALLS)
    shuffled = list(ids)
    random.Random(1).shuffle(shuffled)
    for size in sizes:
        prefer = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=shuffled, allocation_size=size
                )
            ]
        )
        calls = CALLS_WHEN_LARGE if len(ids) > LARGE else CALLS
        figures.prefer.setdefault(size, []).extend(
            _times(endpoint, "GetPreferredAllocation", prefer.SerializeToString(), calls)
        )


def _times(endpoint: Endpoint, method: str, payload: bytes, calls: int) -> list[float]:
    endpoint.call_raw(method, payload)  # warms up connections and caches
    samples: list[float] = []
    while len(samples) < calls and sum(samples) < 1e3 * ENOUGH_SECONDS:
        began = time.perf_counter()
        endpoint.call_raw(method, payload)
        samples.append(1e3 * (time.perf_counter() - began))
    return samples
