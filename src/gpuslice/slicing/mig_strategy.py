"""GPUs -> devices, by MIG strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.slicing.device import Device, mig_devices, whole
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.rules import MigStrategy

_WHOLE = "whole GPU"


def devices_of_gpus(
    gpus: Sequence[Gpu], strategy: MigStrategy
) -> tuple[tuple[Device, ...], list[Notice]]:
    """GPUs that the strategy cannot advertise are skipped with a notice."""
    if strategy is MigStrategy.NONE:
        return tuple(whole(gpu) for gpu in gpus), []
    notices: list[Notice] = []
    if strategy is MigStrategy.SINGLE:
        gpus, notices = _uniform(gpus)
    devices = (mig_devices(gpu) if gpu.mig_enabled else (whole(gpu),) for gpu in gpus)
    return tuple(device for found in devices for device in found), notices


def _uniform(gpus: Sequence[Gpu]) -> tuple[list[Gpu], list[Notice]]:
    """The largest group of identical GPUs; of equal groups, the one with the lowest index.

    `single` advertises MIG devices as if they were GPUs, so all must be worth the same. A GPU that
    differs does not affect the others.
    """
    kinds = {gpu.uuid: _kind(gpu) for gpu in gpus}
    counts = Counter(kind for kind in kinds.values() if kind is not None)
    if not counts:
        return [], [_not_uniform(gpu, None) for gpu in gpus]
    # Counter keeps the order of the GPUs among equal counts.
    [(usual, _)] = counts.most_common(1)
    same = [gpu for gpu in gpus if kinds[gpu.uuid] == usual]
    return same, [_not_uniform(gpu, same[0]) for gpu in gpus if kinds[gpu.uuid] != usual]


def _kind(gpu: Gpu) -> object | None:
    """What makes two GPUs worth the same; None: the GPU has no MIG device, or different ones."""
    if not gpu.mig_enabled:
        return _WHOLE
    kinds = {_mig_kind(mig) for mig in gpu.mig}
    return kinds.pop() if len(kinds) == 1 else None


def _mig_kind(mig: MigDevice) -> object:
    return mig.profile, mig.memory_mib, mig.multiprocessors, mig.slices, mig.engines


def _not_uniform(gpu: Gpu, other: Gpu | None) -> Notice:
    if gpu.mig_enabled and not gpu.mig:
        return Notice(
            Code.GPU_SKIPPED,
            f"skipping GPU {gpu.index} ({gpu.uuid}): it is in MIG mode and has no MIG devices. "
            "Create them (nvidia-smi mig -cgi <profile> -C)",
        )
    needs = "migStrategy single needs identical GPUs and MIG devices"
    compared = f", and GPU {other.index} ({other.uuid}) has {_described(other)}" if other else ""
    return Notice(
        Code.MIG_NOT_UNIFORM,
        f"skipping GPU {gpu.index} ({gpu.uuid}): {needs}. It has {_described(gpu)}{compared}. "
        "Make them equal, or use migStrategy mixed",
    )


def _described(gpu: Gpu) -> str:
    if not gpu.mig_enabled:
        return "MIG disabled"
    profiles = Counter(mig.profile for mig in gpu.mig)
    return "MIG devices " + ", ".join(f"{count} x {name}" for name, count in profiles.items())
