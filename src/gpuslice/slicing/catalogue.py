"""GPUs and rules -> the resources of a node, each device in exactly one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from gpuslice.slicing.device import Device, parts, whole
from gpuslice.slicing.errors import NothingToOffer, SlicingError, TooManyDevices
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES, device_bytes, numbered_bytes
from gpuslice.slicing.memory import memory_gpus
from gpuslice.slicing.mig import devices_of_gpus
from gpuslice.slicing.naming import named, without_effect
from gpuslice.slicing.rules import MigStrategy, ReplicaRule, Rules, SharingStrategy
from gpuslice.slicing.selection import by_index, listed, means
from gpuslice.slicing.sharing import Absent, Shared, shared

REPLICA_SEPARATOR = "::"


@dataclass(frozen=True)
class Offered:
    """A device as it is offered: once under its UUID, or as replicas `<uuid>::<n>`."""

    device: Device
    # 0: it is not shared. 1 is a shared device with a single replica, which MPS may limit.
    replicas: int = 0
    # Memory that no replica is promised.
    reserve_mib: int = 0

    def ids(self) -> Iterator[str]:
        if not self.replicas:
            return iter((self.device.uuid,))
        return (f"{self.device.uuid}{REPLICA_SEPARATOR}{n}" for n in range(self.replicas))


@dataclass(frozen=True)
class DeviceOffer:
    """One resource of whole GPUs, MIG devices or replicas of them, in order of their index."""

    name: str
    devices: tuple[Offered, ...]
    strategy: SharingStrategy = SharingStrategy.NONE
    fail_requests_greater_than_one: bool = False
    nested: bool = False

    @cached_property
    def owners(self) -> dict[str, int]:
        """Device id -> position in `devices`."""
        return {
            device_id: position
            for position, offered in enumerate(self.devices)
            for device_id in offered.ids()
        }


@dataclass(frozen=True)
class Catalogue:
    resources: tuple[DeviceOffer, ...]
    # GPUs whose memory is cut into units.
    memory: tuple[Gpu, ...] = ()
    # What an operator should know, e.g. of a GPU in MIG mode that has no MIG device.
    notes: tuple[str, ...] = ()


def catalogue(gpus: Sequence[Gpu], rules: Rules, stand_ins: Sequence[Device] = ()) -> Catalogue:
    """`stand_ins` are offered as GPUs are, where the platform shows none (WSL, Tegra).

    Raises SlicingError where the rules contradict each other or the node, and NothingToOffer
    where they leave nothing of its GPUs.
    """
    memory, memory_notes = memory_gpus(gpus, rules.memory)
    _check_not_cut(rules.replicas, memory)
    rest = [gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index) if gpu not in memory]
    # Who has all memory cut wants no whole GPUs, not even those that MIG keeps from being cut.
    idle = [gpu for gpu in rest if gpu.mig_enabled] if _only_memory(rules) else []
    others = [gpu for gpu in rest if gpu not in idle]
    devices = (*devices_of_gpus(others, rules.mig_strategy), *stand_ins)
    entries = [(device, named(device, rules)) for device in devices]
    unnamed = [device for device, entry in entries if entry is None]
    shares, sharing_notes = shared(
        [entry for _, entry in entries if entry is not None],
        rules.replicas,
        _absent(rest, unnamed, rules.mig_strategy),
    )
    names = sorted({share.name for share in shares})
    resources = tuple(_resource([s for s in shares if s.name == name], rules) for name in names)
    notes = (
        *memory_notes,
        *map(_idle_note, idle),
        *(without_effect(rules, devices) if gpus or stand_ins else ()),
        *_mig_notes(others, unnamed, rules.mig_strategy),
        *sharing_notes,
    )
    if (gpus or stand_ins) and not resources and not memory:
        raise NothingToOffer(f"nothing of this node can be offered: {'; '.join(notes)}")
    return Catalogue(resources, memory, notes)


def _only_memory(rules: Rules) -> bool:
    everything = rules.memory is not None and rules.memory.everything
    return everything and rules.mig_strategy is MigStrategy.NONE


def _idle_note(gpu: Gpu) -> str:
    return (
        f"GPU {gpu.index} ({gpu.uuid}) is not offered: MIG is enabled, so its memory is cut "
        "already. Offer its MIG devices by the MIG strategy single or mixed"
    )


def _check_not_cut(rules: Sequence[ReplicaRule], memory: Sequence[Gpu]) -> None:
    for rule in rules:
        for gpu in memory:
            if any(means(reference, whole(gpu)) for reference in rule.devices.references):
                raise SlicingError(
                    f"GPU {gpu.index} ({gpu.uuid}) is to be replicated as {rule.name} and its "
                    "memory is to be cut into units: it can be offered in one way only. "
                    "Name other devices in one of the two (sharing.memory devices)"
                )


def _absent(gpus: Sequence[Gpu], unnamed: Sequence[Device], strategy: MigStrategy) -> list[Absent]:
    in_mig_mode = [gpu for gpu in gpus if gpu.mig_enabled]
    if strategy is MigStrategy.NONE:
        return [
            Absent(
                part,
                "is a MIG device; these are offered by the MIG strategy single or mixed "
                "(mig-strategy), and it is none",
            )
            for gpu in in_mig_mode
            for part in parts(gpu)
        ]
    return [
        *(
            Absent(whole(gpu), f"is in MIG mode: name its MIG devices, as in {gpu.index}:0")
            for gpu in in_mig_mode
        ),
        *(Absent(device, "is a part of a GPU instance and is not offered") for device in unnamed),
    ]


def _mig_notes(gpus: Sequence[Gpu], unnamed: Sequence[Device], strategy: MigStrategy) -> list[str]:
    empty = [gpu for gpu in gpus if gpu.mig_enabled and not gpu.mig]
    return [
        *(
            f"GPU {gpu.index} ({gpu.uuid}) is not offered: it is in MIG mode and has no MIG "
            "devices. Create them (nvidia-smi mig -cgi <profile> -C)"
            for gpu in empty
            if strategy is not MigStrategy.NONE
        ),
        *(
            f"MIG device {listed([device])} is not offered: its profile {device.mig.profile} is a "
            "part of a GPU instance, which has no usual name. Give it one under resources.mig"
            for device in unnamed
            if device.mig is not None
        ),
    ]


def _resource(shares: Sequence[Shared], rules: Rules) -> DeviceOffer:
    name = shares[0].name
    ordered = sorted(shares, key=lambda share: by_index(share.device))
    replicating = [share.rule for share in ordered if share.rule is not None]
    strategies = {rule.strategy for rule in replicating}
    if len(strategies) > 1:
        raise SlicingError(
            f"{name} would hold devices shared by both time-slicing and MPS: "
            "give one of the two another name (rename)"
        )
    nested = {share.nested for share in shares if share.nested is not None}
    if len(nested) > 1:
        raise SlicingError(
            f"{name} is nested by one rule and not nested by another: a resource is one or the "
            "other. Give the devices different names"
        )
    offer = DeviceOffer(
        name,
        tuple(map(_offered, ordered)),
        strategy=next(iter(strategies), SharingStrategy.NONE),
        fail_requests_greater_than_one=any(r.fail_requests_greater_than_one for r in replicating),
        nested=next(iter(nested), rules.nested),
    )
    _check_size(offer)
    return offer


def _offered(share: Shared) -> Offered:
    if share.rule is None:
        return Offered(share.device)
    return Offered(share.device, share.rule.replicas, share.rule.reserve_mib)


def _check_size(offer: DeviceOffer) -> None:
    size = sum(map(_list_bytes, offer.devices))
    if size <= MESSAGE_LIMIT_BYTES:
        return
    replicas = max(offered.replicas for offered in offer.devices)
    raise TooManyDevices(
        f"{offer.name} has up to {replicas} replicas of {len(offer.devices)} devices: their list "
        f"takes {size} bytes and the kubelet accepts {MESSAGE_LIMIT_BYTES}. "
        f"Use at most {_replicas_that_fit(offer.devices, replicas)} replicas"
    )


def _list_bytes(offered: Offered) -> int:
    uuid, numa_node = offered.device.uuid, offered.device.numa_node
    if not offered.replicas:
        return device_bytes(len(uuid), numa_node)
    return numbered_bytes(len(uuid) + len(REPLICA_SEPARATOR), offered.replicas, numa_node)


def _replicas_that_fit(devices: Sequence[Offered], too_many: int) -> int:
    """By halving the interval between what fits and what does not."""
    fits = 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fewer = (replace(o, replicas=min(o.replicas, middle)) for o in devices)
        if sum(map(_list_bytes, fewer)) <= MESSAGE_LIMIT_BYTES:
            fits = middle
        else:
            too_many = middle
    return fits
