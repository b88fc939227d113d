"""GPUs -> devices, by MIG strategy."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.slicing.device import Device, mig_devices, whole
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy


def devices_of_gpus(gpus: Sequence[Gpu], strategy: MigStrategy) -> tuple[Device, ...]:
    """Raises SlicingError if GPUs differ that the strategy requires to be identical."""
    if strategy is MigStrategy.NONE:
        return tuple(whole(gpu) for gpu in gpus)
    if strategy is MigStrategy.SINGLE:
        _check_uniform(gpus)
    return tuple(
        device
        for gpu in gpus
        for device in (mig_devices(gpu) if gpu.mig_enabled else (whole(gpu),))
    )


def _check_uniform(gpus: Sequence[Gpu]) -> None:
    """`single` advertises MIG devices as if they were GPUs, so all must be worth the same."""
    in_mig_mode = [gpu for gpu in gpus if gpu.mig_enabled]
    if not in_mig_mode:
        return
    if len(in_mig_mode) < len(gpus):
        others = [gpu for gpu in gpus if not gpu.mig_enabled]
        raise _not_uniform(
            "migStrategy single needs all GPUs in MIG mode, or none: "
            f"MIG is enabled on {_listed(in_mig_mode)} and disabled on {_listed(others)}. "
            "Change the mode of one group, or use migStrategy mixed"
        )
    empty = [gpu for gpu in gpus if not gpu.mig]
    if empty:
        raise _not_uniform(
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
        raise _not_uniform(
            f"migStrategy single needs identical MIG devices, and these differ: {found}. "
            "Create the same ones on every GPU, or use migStrategy mixed"
        )


def _not_uniform(message: str) -> SlicingError:
    return SlicingError(Code.MIG_NOT_UNIFORM, message)


def _kind(mig: MigDevice) -> object:
    return mig.profile, mig.memory_mib, mig.multiprocessors, mig.slices, mig.engines


def _listed(gpus: Sequence[Gpu]) -> str:
    return ", ".join(f"GPU {gpu.index} ({gpu.uuid})" for gpu in gpus)
