"""What a node advertises: pools, and the parts of GPUs that they consist of."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from gpuslice.slicing.device import Device
from gpuslice.slicing.device_ids import DeviceIds
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.rules import Advertise, SharingStrategy
from gpuslice.slicing.threads import Threads
from gpuslice.slicing.units import MemoryUnit


@dataclass(frozen=True, slots=True)
class Share:
    """What one device id stands for."""

    memory_mib: int
    # None: threads are not limited.
    threads: Threads | None = None

    def times(self, count: int) -> Limits:
        """The limits of a container that has `count` of them."""
        percent = None if self.threads is None else self.threads.times(count)
        return Limits(self.memory_mib * count, percent)


@dataclass(frozen=True, slots=True)
class Part:
    """The device ids of one GPU or MIG device in a pool. They are equal shares of it."""

    device: Device
    ids: DeviceIds
    share: Share
    # The MPS control daemon that enforces the limits, by name; None: nothing is enforced.
    daemon: str | None = None
    # The NUMA node that the kubelet gets to know; None: none.
    numa_node: int | None = None

    @property
    def count(self) -> int:
        return len(self.ids)

    @property
    def is_shared(self) -> bool:
        """A device with a single replica is shared, too: MPS may limit it."""
        return self.ids.count is not None


@dataclass(frozen=True)
class Pool:
    """One extended resource: its name, its parts, and the rules for requests."""

    resource: str
    parts: tuple[Part, ...]
    sharing: SharingStrategy = SharingStrategy.NONE
    # A container can get one share only.
    one_share_per_container: bool = False
    # Containers are nodes of nested clusters.
    nested: bool = False
    # What one share is, where shares are units of memory.
    unit: MemoryUnit | None = None
    advertise: Advertise = Advertise.ALL
    # Whether MPS control daemons limit every client to one share, in addition to its own limits.
    limited_by_daemon: bool = False
    # Whether each GPU has an MPS control daemon of its own, with the UUID of the GPU as its name.
    daemon_per_gpu: bool = False

    @property
    def count(self) -> int:
        return sum(part.count for part in self.parts)

    @property
    def one_gpu_per_container(self) -> bool:
        """Whether all shares of a container must lie on one GPU."""
        return self.sharing in (SharingStrategy.MPS, SharingStrategy.MEMORY)

    @property
    def advertises_one_gpu(self) -> bool:
        """Whether only the free shares of one GPU are advertised."""
        return (
            self.advertise is Advertise.ONE_GPU
            and self.one_gpu_per_container
            and not self.one_share_per_container
            and len(self.parts) > 1
        )

    @property
    def daemons(self) -> frozenset[str]:
        """The MPS control daemons that enforce limits in this pool, by name."""
        return frozenset(part.daemon for part in self.parts if part.daemon is not None)

    @property
    def has_partitions(self) -> bool:
        """Whether containers get SMs that no other container uses."""
        shares = (part.share.threads for part in self.parts if part.daemon is not None)
        return any(threads is not None and threads.partitioned for threads in shares)

    @cached_property
    def owners(self) -> dict[str, int]:
        """Device id -> position in `parts`."""
        return {
            device_id: position
            for position, part in enumerate(self.parts)
            for device_id in part.ids
        }

    def list_bytes(self) -> int:
        """The size of the device list on the wire at its largest: with every device unhealthy."""
        return sum(part.ids.list_bytes(part.numa_node) for part in self.parts)
