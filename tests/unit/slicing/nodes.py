"""Nodes in one line: GPUs, MIG devices and their pools."""

from fractions import Fraction

from gpuslice.codes import Code
from gpuslice.slicing.catalogue import Catalogue
from gpuslice.slicing.device import Device
from gpuslice.slicing.device_ids import replica_ids, whole_id
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.pool import Part, Pool, Share
from gpuslice.slicing.rules import ReplicaRule, Selection, SharingStrategy
from gpuslice.slicing.threads import Threads

A100 = "NVIDIA A100-SXM4-40GB"
SMALL = ("1g.5gb", 4864, 1)
MEDIUM = ("2g.10gb", 9856, 2)


def gpu(
    index: int,
    name: str = A100,
    *,
    memory_mib: int = 40960,
    compute_capability: tuple[int, int] = (8, 0),
    numa_node: int | None = None,
) -> Gpu:
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        minor=index,
        name=name,
        memory_mib=memory_mib,
        compute_capability=compute_capability,
        numa_node=numa_node,
        nodes=(f"/dev/nvidia{index}",),
    )


def mig_gpu(index: int, *kinds: tuple[str, int, int]) -> Gpu:
    """A GPU in MIG mode with a device of each kind: profile, memory, slices."""
    return Gpu(
        uuid=f"GPU-{index}",
        index=index,
        minor=index,
        name=A100,
        memory_mib=40960,
        compute_capability=(8, 0),
        nodes=(f"/dev/nvidia{index}",),
        mig_capable=True,
        mig_enabled=True,
        mig=tuple(
            MigDevice(
                uuid=f"MIG-{index}-{n}",
                index=n,
                gpu_instance=n + 7,
                compute_instance=0,
                profile=profile,
                memory_mib=memory_mib,
                slices=(slices, 1 if profile.startswith("1c.") else slices),
                nodes=(f"/dev/nvidia-caps/nvidia-cap{n}",),
            )
            for n, (profile, memory_mib, slices) in enumerate(kinds)
        ),
    )


def part(device: Device, replicas: int = 0, reserve_mib: int = 0) -> Part:
    """A device as it is, or in so many replicas that MPS limits."""
    if not replicas:
        return Part(device, whole_id(device.uuid), Share(device.memory_mib))
    threads = Threads(Fraction(100, replicas))
    share = Share((device.memory_mib - reserve_mib) // replicas, threads)
    return Part(device, replica_ids(device.uuid, replicas), share, daemon="nvidia.com/gpu")


def contents(found: Catalogue) -> dict[str, list[str]]:
    """Resource -> `index` of its devices, `index x replicas` where they are shared.

    Without memory units, whose GPUs `sliced_gpus` returns.
    """
    return {
        pool.resource: described(pool)
        for pool in found.pools
        if pool.sharing is not SharingStrategy.MEMORY
    }


def described(pool: Pool) -> list[str]:
    return [
        f"{one.device.index} x {one.count}" if one.is_shared else one.device.index
        for one in pool.parts
    ]


def sliced_gpus(found: Catalogue) -> list[int]:
    """Indices of the GPUs that are sliced by memory."""
    memory = [pool for pool in found.pools if pool.sharing is SharingStrategy.MEMORY]
    return [int(one.device.index) for pool in memory for one in pool.parts]


def messages(found: Catalogue) -> list[str]:
    return [notice.message for notice in found.notices]


def codes(found: Catalogue) -> list[Code]:
    return [notice.code for notice in found.notices]


def sliced(
    replicas: int,
    *references: str,
    count: int | None = None,
    name: str = "nvidia.com/gpu",
    rename: str | None = None,
    nested: bool | None = None,
) -> ReplicaRule:
    devices = Selection(count, references)
    return ReplicaRule(SharingStrategy.TIME_SLICING, name, replicas, rename, devices, nested=nested)


def mps(
    replicas: int, *references: str, rename: str | None = None, reserve_mib: int = 0
) -> ReplicaRule:
    return ReplicaRule(
        SharingStrategy.MPS,
        "nvidia.com/gpu",
        replicas,
        rename,
        Selection(references=references),
        fail_requests_greater_than_one=True,
        reserve_mib=reserve_mib,
    )


def only(found: Catalogue) -> Pool:
    (pool,) = found.pools
    return pool
