"""Which GPUs have their memory cut into units."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.slicing.device import parts, whole
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.rules import Selection
from gpuslice.slicing.selection import listed, means, select

_FIELD = "sharing.memory devices"


def memory_gpus(
    gpus: Sequence[Gpu], selection: Selection | None
) -> tuple[tuple[Gpu, ...], list[str]]:
    """The selected GPUs by index, and notes of what this node has not.

    The memory of a GPU in MIG mode is divided already. Such a GPU is passed over, and refused
    where it is named.
    """
    if selection is None:
        return (), []
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    sliceable = {gpu.uuid: gpu for gpu in ordered if not gpu.mig_enabled}
    chosen = select(selection, [whole(gpu) for gpu in sliceable.values()])
    for reference in chosen.unmatched:
        _check_not_mig(reference, gpus)
    present = listed([whole(gpu) for gpu in sliceable.values()])
    notes = [
        f"{_FIELD}: {reference} is not on this node, which has {present}"
        for reference in chosen.unmatched
    ]
    if chosen.short_by:
        notes.append(
            f"{_FIELD}: {selection.count} GPUs are wanted and there are {len(chosen.devices)}"
        )
    return tuple(sliceable[device.uuid] for device in chosen.devices), notes


def _check_not_mig(reference: str, gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        if any(means(reference, device) for device in (whole(gpu), *parts(gpu))):
            raise SlicingError(
                f"{_FIELD}: {reference} cannot be cut into units, since GPU {gpu.index} "
                f"({gpu.uuid}) is in MIG mode. Leave it out, or switch its MIG mode off"
            )
