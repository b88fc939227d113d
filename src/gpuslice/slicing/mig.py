"""GPUs -> devices: what becomes of GPUs in MIG mode."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.slicing.device import Device, parts, whole
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy


def devices_of_gpus(gpus: Sequence[Gpu], strategy: MigStrategy) -> tuple[Device, ...]:
    """Raises SlicingError where GPUs that must be alike are not."""
    if strategy is MigStrategy.NONE:
        return tuple(whole(gpu) for gpu in gpus)
    if strategy is MigStrategy.SINGLE:
        _check_alike(gpus)
    return tuple(
        device for gpu in gpus for device in (parts(gpu) if gpu.mig_enabled else (whole(gpu),))
    )


def _check_alike(gpus: Sequence[Gpu]) -> None:
    """`single` shows MIG devices as if they were GPUs, so one must be worth as much as another."""
    in_mig_mode = [gpu for gpu in gpus if gpu.mig_enabled]
    if not in_mig_mode:
        return
    if len(in_mig_mode) < len(gpus):
        others = [gpu for gpu in gpus if not gpu.mig_enabled]
        raise SlicingError(
            "migStrategy single needs all GPUs to be in MIG mode or none: "
            f"{_listed(in_mig_mode)} are, {_listed(others)} are not. "
            "Switch the mode of the ones or the others, or use migStrategy mixed"
        )
    empty = [gpu for gpu in gpus if not gpu.mig]
    if empty:
        raise SlicingError(
            f"migStrategy single needs MIG devices on every GPU: {_listed(empty)} have none. "
            "Create them (nvidia-smi mig -cgi <profile> -C), or use migStrategy mixed"
        )
    kinds: dict[object, list[str]] = {}
    profiles: dict[object, str] = {}
    for gpu in gpus:
        for mig in gpu.mig:
            kinds.setdefault(_kind(mig), []).append(f"{gpu.index}:{mig.index}")
            profiles[_kind(mig)] = mig.profile
    if len(kinds) > 1:
        found = "; ".join(f"{profiles[kind]}: {', '.join(at)}" for kind, at in kinds.items())
        raise SlicingError(
            f"migStrategy single needs all MIG devices to be alike, and these differ: {found}. "
            "Create the same ones on every GPU, or use migStrategy mixed"
        )


def _kind(mig: MigDevice) -> object:
    return mig.profile, mig.memory_mib, mig.multiprocessors, mig.slices, mig.engines


def _listed(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in gpus)
