"""GPUs -> units of their memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from gpuslice.codes import Code
from gpuslice.slicing.device import mig_devices, whole
from gpuslice.slicing.device_ids import DeviceIds, short_unit_ids, unit_ids
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.limits import ThreadShare, can_limit, why_not_limited
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Part, Pool, Share
from gpuslice.slicing.rules import MemoryRule, SharingStrategy
from gpuslice.slicing.selection import listed, refers_to, select
from gpuslice.slicing.units import MemoryUnit

_FIELD = "sharing.memory devices"

_Ids = Callable[[Gpu, int], DeviceIds]


def select_gpus(gpus: Sequence[Gpu], rule: MemoryRule) -> tuple[tuple[Gpu, ...], list[Notice]]:
    """The GPUs that the rule selects, by index, and notices about those that the node lacks.

    The memory of a GPU in MIG mode is divided already. Such a GPU is passed over, and a rule that
    names it is rejected.
    """
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    sliceable = {gpu.uuid: gpu for gpu in ordered if not gpu.mig_enabled}
    selected = select(rule.devices, [whole(gpu) for gpu in sliceable.values()])
    for reference in selected.unmatched:
        _check_not_mig(reference, gpus)
    present = listed([whole(gpu) for gpu in sliceable.values()])
    notices = [
        Notice(
            Code.DEVICE_NOT_FOUND, f"{_FIELD}: {reference} is not on this node, which has {present}"
        )
        for reference in selected.unmatched
    ]
    if selected.short_by:
        notices.append(
            Notice(
                Code.DEVICE_NOT_FOUND,
                f"{_FIELD}: {rule.devices.count} GPUs are configured and the node has "
                f"{len(selected.devices)}",
            )
        )
    return tuple(sliceable[device.uuid] for device in selected.devices), notices


def memory_pool(gpus: Sequence[Gpu], rule: MemoryRule) -> tuple[Pool | None, list[Notice]]:
    """Slices each GPU by its own size. None: not a single unit can be advertised.

    Raises SlicingError if the device list would be too long for the kubelet.
    """
    usable = [gpu for gpu in gpus if not rule.limited or can_limit(gpu)]
    sliced = [gpu for gpu in usable if _units(gpu, rule)]
    notices = [
        Notice(Code.GPU_SKIPPED, f"skipping {_named(gpu)}: {reason}")
        for gpu in gpus
        if (reason := _why_skipped(gpu, rule))
    ]
    if not sliced:
        return None, notices
    return _fitting(sorted(sliced, key=lambda gpu: gpu.minor), rule), notices


def _fitting(gpus: Sequence[Gpu], rule: MemoryRule) -> Pool:
    for ids in (_long_ids, _short_ids):
        pool = _pool(gpus, rule, ids)
        if pool.list_bytes() <= MESSAGE_LIMIT_BYTES:
            return pool
    raise SlicingError(
        Code.TOO_MANY_DEVICES,
        f"memory unit {rule.unit} makes {pool.count} devices of this node: their list takes "
        f"{pool.list_bytes()} bytes and the kubelet accepts {MESSAGE_LIMIT_BYTES}. "
        f"Use a larger unit, for example {_unit_that_fits(gpus, rule)}",
    )


def _pool(gpus: Sequence[Gpu], rule: MemoryRule, ids: _Ids) -> Pool:
    return Pool(
        rule.resource,
        tuple(_part(gpu, units, rule, ids) for gpu in gpus if (units := _units(gpu, rule))),
        SharingStrategy.MEMORY,
        unit=rule.unit,
    )


def _part(gpu: Gpu, units: int, rule: MemoryRule, ids: _Ids) -> Part:
    threads_of = units if rule.threads is ThreadShare.PROPORTIONAL else None
    return Part(
        whole(gpu),
        ids(gpu, units),
        Share(rule.unit.mib, threads_of),
        daemon=rule.resource if rule.limited else None,
    )


def _long_ids(gpu: Gpu, units: int) -> DeviceIds:
    return unit_ids(gpu.uuid, units)


def _short_ids(gpu: Gpu, units: int) -> DeviceIds:
    return short_unit_ids(gpu.minor, units)


def _units(gpu: Gpu, rule: MemoryRule, unit: MemoryUnit | None = None) -> int:
    return (unit or rule.unit).units_in(gpu.memory_mib - rule.reserve_mib)


def _why_skipped(gpu: Gpu, rule: MemoryRule) -> str:
    if rule.limited and not can_limit(gpu):
        return f"{why_not_limited(gpu)}. Without mps-pipe, memory is counted and not limited"
    if not _units(gpu, rule):
        return (
            f"its memory of {gpu.memory_mib} MiB, of which {rule.reserve_mib} MiB are reserved, is "
            f"smaller than one unit of {rule.unit}. Use a smaller unit or reserve"
        )
    return ""


def _unit_that_fits(gpus: Sequence[Gpu], rule: MemoryRule) -> MemoryUnit:
    """The first doubling of the unit whose device list is short enough."""
    unit = rule.unit
    while True:
        unit = MemoryUnit(unit.mib * 2)
        ids = (_short_ids(gpu, _units(gpu, rule, unit)) for gpu in gpus)
        if sum(one.list_bytes(None) for one in ids) <= MESSAGE_LIMIT_BYTES:
            return unit


def _named(gpu: Gpu) -> str:
    return f"GPU {gpu.index} ({gpu.uuid})"


def _check_not_mig(reference: str, gpus: Sequence[Gpu]) -> None:
    for gpu in gpus:
        if any(refers_to(reference, device) for device in (whole(gpu), *mig_devices(gpu))):
            raise SlicingError(
                Code.MIG_NOT_SLICEABLE,
                f"{_FIELD}: {reference} cannot be sliced by memory, because {_named(gpu)} is in "
                "MIG mode. Remove it from the list, or disable MIG on it",
            )
