"""What a container can be given: a whole GPU, a MIG device, or a placeholder for all GPUs."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.slicing.gpu import Gpu, MigDevice


@dataclass(frozen=True, slots=True)
class Device:
    """`uuid` names it to the kubelet and to the container runtime, `index` to people."""

    uuid: str
    index: str
    # UUID of the GPU that it is, or is a part of.
    gpu: str
    # Device nodes, as seen from the host's root.
    nodes: tuple[str, ...] = ()
    memory_mib: int = 0
    compute_capability: tuple[int, int] = (0, 0)
    numa_node: int | None = None
    model: str = ""
    # Whether that GPU is in MIG mode.
    mig_enabled: bool = False
    mig: MigDevice | None = None
    # The N of that GPU's /dev/nvidiaN; None for a placeholder.
    minor: int | None = None
    # 0: unknown.
    multiprocessors: int = 0

    @property
    def is_mig(self) -> bool:
        return self.mig is not None


def whole(gpu: Gpu) -> Device:
    return Device(
        uuid=gpu.uuid,
        index=str(gpu.index),
        gpu=gpu.uuid,
        minor=gpu.minor,
        nodes=gpu.nodes,
        memory_mib=gpu.memory_mib,
        compute_capability=gpu.compute_capability,
        numa_node=gpu.numa_node,
        model=gpu.name,
        mig_enabled=gpu.mig_enabled,
        multiprocessors=gpu.multiprocessors,
    )


def mig_devices(gpu: Gpu) -> tuple[Device, ...]:
    """The MIG devices of a GPU. Each needs the GPU's own device node as well."""
    return tuple(
        Device(
            uuid=mig.uuid,
            index=f"{gpu.index}:{mig.index}",
            gpu=gpu.uuid,
            minor=gpu.minor,
            nodes=(*gpu.nodes, *mig.nodes),
            memory_mib=mig.memory_mib,
            compute_capability=gpu.compute_capability,
            numa_node=gpu.numa_node,
            model=gpu.name,
            mig_enabled=gpu.mig_enabled,
            mig=mig,
            multiprocessors=mig.multiprocessors,
        )
        for mig in gpu.mig
    )
