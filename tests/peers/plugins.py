"""NVIDIA's device plugin on a simulated node, with a kubelet that listens to it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Endpoint, Kubelet
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess

# Hard-coded in the plugin, as in every other.
DEVICE_PLUGINS = "/var/lib/kubelet/device-plugins"

# Release 0.19 switches these on by default and then adds a variable for each to every answer.
_PLAIN = ["--gds-enabled=false", "--mofed-enabled=false", "--gdrcopy-enabled=false"]
_IGNORED_XIDS = range(1000, 1100)
_LONGER_AND_LONGER = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_PATIENCE = 90.0


@dataclass
class Plugin:
    node: SimNode
    kubelet: Kubelet
    process: BackgroundProcess
    _unused_xids: Iterator[int] = field(default_factory=lambda: iter(_IGNORED_XIDS))

    def devices(self, resource: str = "nvidia.com/gpu") -> dict[str, str]:
        """Id -> health, once the plugin has registered."""
        self._wait_for(resource)
        return self.kubelet.devices(resource)

    def numa_nodes(self, resource: str = "nvidia.com/gpu") -> dict[str, list[int]]:
        """Asks for the list a second time. The plugin never notices that this listener leaves,
        and may tell it of the next fault instead of the kubelet: not to be mixed with faults."""
        endpoint = self._wait_for(resource)
        stream = endpoint.channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            request_serializer=api.Empty.SerializeToString,
            response_deserializer=api.ListAndWatchResponse.FromString,
        )(api.Empty())
        first: api.ListAndWatchResponse = next(iter(stream))
        stream.cancel()
        return {d.ID: [node.ID for node in d.topology.nodes] for d in first.devices}

    def allocate(
        self, *ids: str, resource: str = "nvidia.com/gpu"
    ) -> api.ContainerAllocateResponse:
        request = api.AllocateRequest(
            container_requests=[api.ContainerAllocateRequest(devices_ids=ids)]
        )
        endpoint = self._wait_for(resource)
        [answer] = endpoint.call(
            "Allocate", request, api.AllocateResponse, _PATIENCE
        ).container_responses
        return answer

    def preferred(
        self, size: int, available: list[str], *, must_include: tuple[str, ...] = ()
    ) -> list[str]:
        request = api.PreferredAllocationRequest(
            container_requests=[
                api.ContainerPreferredAllocationRequest(
                    available_deviceIDs=available,
                    must_include_deviceIDs=must_include,
                    allocation_size=size,
                )
            ]
        )
        [answer] = (
            self._wait_for("nvidia.com/gpu")
            .call("GetPreferredAllocation", request, api.PreferredAllocationResponse, _PATIENCE)
            .container_responses
        )
        return list(answer.deviceIDs)

    def settle(self, gpu: int, listeners: int = 1) -> None:
        """Returns when all health checks that watch a GPU have dealt with every event so far.

        Events come in order, so one that all of them have seen proves it. It is sent again if need
        be, with another number each time: a health check that has just started may have missed it.
        """
        for xid, timeout in zip(self._unused_xids, _LONGER_AND_LONGER, strict=False):
            self.node.faults.xid(gpu, xid)
            try:
                self.process.wait_for_output(
                    rf"Skipping event .*EventData:{xid}\b", times=listeners, timeout=timeout
                )
            except TimeoutError:
                if timeout == _LONGER_AND_LONGER[-1] or self.process.returncode is not None:
                    raise
            else:
                return

    def wait_for_unhealthy(self, *ids: str, resource: str = "nvidia.com/gpu") -> None:
        wanted = dict.fromkeys(ids, "Unhealthy")
        self.kubelet.wait_until(
            lambda: wanted.items() <= self.kubelet.devices(resource).items(),
            f"{', '.join(ids)} to become unhealthy",
            _PATIENCE,
        )

    def _wait_for(self, resource: str) -> Endpoint:
        serving = f"Registered device plugin for '{re.escape(resource)}' with Kubelet"
        self.process.wait_for_output(serving, timeout=_PATIENCE)
        return self.kubelet.wait_for(resource, _PATIENCE)


def start(
    program: Path,
    node: SimNode,
    kubelet: Kubelet,
    scratch: Path,
    *flags: str,
    binds: dict[str, Path],
) -> Plugin:
    # The driver root alone leads it to the library, as in a container with the driver mounted.
    found = ["env", "-u", "LD_LIBRARY_PATH", str(program), f"--driver-root-ctr-path={node.root}"]
    argv = [*found, *_PLAIN, *flags]
    places = {DEVICE_PLUGINS: kubelet.directory, **binds}
    process = BackgroundProcess(
        node.namespace_command(argv, places),
        env=node.env() | {"DP_DISABLE_HEALTHCHECKS": ",".join(map(str, _IGNORED_XIDS))},
        log=scratch / "plugin.log",
    )
    return Plugin(node, kubelet, process)
