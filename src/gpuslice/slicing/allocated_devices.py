"""The GPUs that a node of a nested cluster gets from the node it runs on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuslice.slicing.allocated_list import AllocatedDevicesError, folded
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy


def missing(gpus: Sequence[Gpu], allocated: Iterable[str]) -> tuple[str, ...]:
    """Allocated devices that are not on this node."""
    known = {name for gpu in gpus for name in _names(gpu)}
    known |= {name for gpu in gpus for mig in gpu.mig for name in _mig_names(gpu, mig)}
    return tuple(name for name in allocated if folded(name) not in known)


def allocated_gpus(
    gpus: Sequence[Gpu],
    allocated: Sequence[str],
    *,
    mig_strategy: MigStrategy = MigStrategy.MIXED,
    some_do_not_answer: bool = False,
) -> tuple[Gpu, ...]:
    """The allocated GPUs. A GPU of which MIG devices are allocated keeps only these.

    If GPUs of the node do not answer, a missing device may be one of them, and the others are
    returned. A whole GPU is never returned if only MIG devices of it are allocated.
    """
    foreign = missing(gpus, allocated)
    if foreign and not (some_do_not_answer and len(foreign) < len(allocated)):
        here = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise AllocatedDevicesError(
            ",".join(foreign),
            "this node has no such device. The list belongs to another node, or the GPU is lost: "
            f"remove the list and let the host node write a new one. {_mig_cause(foreign)}"
            f"GPUs of this node: {here}",
        )
    wanted = {folded(name) for name in allocated}
    kept = [own for gpu in gpus if (own := _kept(gpu, wanted)) is not None]
    for gpu in kept:
        if mig_strategy is MigStrategy.NONE and not wanted & _names(gpu):
            raise AllocatedDevicesError(
                ",".join(mig.uuid for mig in gpu.mig),
                f"these are MIG devices, and GPU {gpu.index} would be advertised as a whole; "
                "set migStrategy to single or mixed",
            )
    return tuple(kept)


def _mig_cause(foreign: Iterable[str]) -> str:
    if not any(name.upper().startswith("MIG-") or ":" in name for name in foreign):
        return ""
    return (
        "Or the driver hides MIG devices from this container: run it privileged, or with the "
        "capability SYS_ADMIN and the variable NVIDIA_MIG_MONITOR_DEVICES=all. "
    )


def _kept(gpu: Gpu, wanted: set[str]) -> Gpu | None:
    if wanted & _names(gpu):
        return gpu
    mig = tuple(mig for mig in gpu.mig if wanted & _mig_names(gpu, mig))
    return replace(gpu, mig=mig) if mig else None


def _names(gpu: Gpu) -> set[str]:
    return {folded(gpu.uuid), str(gpu.index)}


def _mig_names(gpu: Gpu, mig: MigDevice) -> set[str]:
    legacy = f"MIG-{gpu.uuid}/{mig.gpu_instance}/{mig.compute_instance}"
    return {folded(mig.uuid), folded(legacy), f"{gpu.index}:{mig.index}"}
