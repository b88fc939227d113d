"""GPUs -> units of their memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from gpuslice.codes import Code
from gpuslice.slicing.device import mig_devices, whole
from gpuslice.slicing.device_ids import DeviceIds, short_unit_ids, unit_ids
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.limits import can_limit, why_not_limited
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Part, Pool, Share
from gpuslice.slicing.reserve import reserve_mib
from gpuslice.slicing.rules import IdForm, MemoryRule, SharingStrategy
from gpuslice.slicing.selection import listed, refers_to, select
from gpuslice.slicing.threads import (
    share_of_threads,
    why_no_partitions,
    why_no_threads,
    why_rounded,
)
from gpuslice.slicing.units import MemoryUnit

_FIELD = "sharing.memory devices"

# Long ids are used if a node with this many such GPUs can advertise them.
_GPUS_WITH_LONG_IDS = 16
# A NUMA node adds to the size, and may be unknown at one start and known at the next.
_ANY_NUMA_NODE = 255


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
    reasons = {gpu.uuid: _why_skipped(gpu, rule) for gpu in gpus}
    sliced = [gpu for gpu in gpus if not reasons[gpu.uuid]]
    notices = [
        Notice(Code.GPU_SKIPPED, f"skipping {_named(gpu)}: {reasons[gpu.uuid]}")
        for gpu in gpus
        if reasons[gpu.uuid]
    ]
    if rule.limited:
        notices += [
            Notice(Code.THREADS_ROUNDED, f"{_named(gpu)}: {reason}")
            for gpu in sliced
            if (reason := why_rounded(rule.threads, gpu.multiprocessors))
        ]
    if not sliced:
        return None, notices
    ordered = sorted(sliced, key=lambda gpu: gpu.minor)
    parts = tuple(_part(gpu, _units(gpu, rule), rule) for gpu in ordered)
    pool = Pool(
        rule.resource,
        parts,
        SharingStrategy.MEMORY,
        unit=rule.unit,
        advertise=rule.advertise,
        daemon_per_gpu=rule.limited and rule.daemon_per_gpu,
    )
    fitting = _fitting(pool, rule)
    if fitting != pool:
        notices.append(
            Notice(
                Code.NUMA_NODES_OMITTED,
                f"{rule.resource}: with NUMA nodes, the list of {pool.count} devices would be too "
                "long for the kubelet. Use a larger memory unit to advertise them",
            )
        )
    return fitting, notices


def _fitting(pool: Pool, rule: MemoryRule) -> Pool:
    """Without NUMA nodes if the device list is too long with them: they are only a hint."""
    parts = tuple(replace(part, numa_node=None) for part in pool.parts)
    for candidate in (pool, replace(pool, parts=parts)):
        if candidate.list_bytes() <= MESSAGE_LIMIT_BYTES:
            return candidate
    raise SlicingError(
        Code.TOO_MANY_DEVICES,
        f"memory unit {rule.unit} makes {pool.count} devices of this node: their list takes "
        f"{pool.list_bytes()} bytes and the kubelet accepts {MESSAGE_LIMIT_BYTES}. "
        f"Use a larger unit, for example {_unit_that_fits(pool, rule)}",
    )


def _part(gpu: Gpu, units: int, rule: MemoryRule) -> Part:
    threads = share_of_threads(
        rule.threads, units, Fraction(1, units), gpu.multiprocessors, per_container=True
    )
    return Part(
        whole(gpu),
        _ids(gpu, units, rule.ids),
        Share(rule.unit.mib, threads),
        daemon=_daemon(gpu, rule),
        numa_node=gpu.numa_node,
    )


def _daemon(gpu: Gpu, rule: MemoryRule) -> str | None:
    if not rule.limited:
        return None
    return gpu.uuid if rule.daemon_per_gpu else rule.resource


def _ids(gpu: Gpu, units: int, form: IdForm) -> DeviceIds:
    """The form depends on this GPU alone: another GPU that is added must not change the ids.

    Containers hold devices by their ids, so a GPU whose ids change would be allocated twice.
    """
    long = unit_ids(gpu.uuid, units)
    room = long.list_bytes(_ANY_NUMA_NODE) * _GPUS_WITH_LONG_IDS <= MESSAGE_LIMIT_BYTES
    if form is IdForm.LONG or (form is IdForm.AUTO and room):
        return long
    return short_unit_ids(gpu.minor, units)


def _units(gpu: Gpu, rule: MemoryRule) -> int:
    return rule.unit.units_in(gpu.memory_mib - reserve_mib(gpu, rule))


def _why_skipped(gpu: Gpu, rule: MemoryRule) -> str:
    if rule.limited and not can_limit(gpu):
        return f"{why_not_limited(gpu)}. With mps-mode none, memory is counted and not limited"
    if rule.limited and (reason := why_no_threads(rule.threads, gpu.multiprocessors)):
        return reason
    if rule.limited and (reason := why_no_partitions(rule.threads, gpu.compute_capability)):
        return reason
    if not _units(gpu, rule):
        return (
            f"its memory of {gpu.memory_mib} MiB, of which {reserve_mib(gpu, rule)} MiB are "
            f"reserved, is smaller than one unit of {rule.unit}. Use a smaller unit or reserve"
        )
    return ""


def _unit_that_fits(pool: Pool, rule: MemoryRule) -> MemoryUnit:
    """The first doubling of the unit whose device list is short enough."""
    unit = rule.unit
    while True:
        unit = MemoryUnit(unit.mib * 2)
        sizes = (
            short_unit_ids(
                part.device.minor or 0, unit.units_in(part.device.memory_mib)
            ).list_bytes(part.numa_node)
            for part in pool.parts
        )
        if sum(sizes) <= MESSAGE_LIMIT_BYTES:
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
