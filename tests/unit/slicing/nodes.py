"""Nodes written in a line: GPUs, MIG devices and what is offered of them."""

from gpuslice.slicing.catalogue import Catalogue, DeviceOffer
from gpuslice.slicing.gpu import Gpu, MigDevice

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


def contents(found: Catalogue) -> dict[str, list[str]]:
    """Resource -> `index` of its devices, `index x replicas` where they are shared."""
    return {offer.name: described(offer) for offer in found.resources}


def described(offer: DeviceOffer) -> list[str]:
    return [
        f"{offered.device.index} x {offered.replicas}" if offered.replicas else offered.device.index
        for offered in offer.devices
    ]
