"""GPUs and rules -> the pools of a node.

Each device is in exactly one of them, or its shares with names are in several.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.slicing.device import Device, mig_devices, whole
from gpuslice.slicing.device_ids import replica_ids, whole_id
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.list_size import MESSAGE_LIMIT_BYTES
from gpuslice.slicing.memory_units import memory_pool, select_gpus
from gpuslice.slicing.mig_strategy import devices_of_gpus
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.pool import Part, Pool, Share
from gpuslice.slicing.replicas import NotShareable, SharedDevice, apply_replica_rules
from gpuslice.slicing.resource_names import named, unmatched_patterns
from gpuslice.slicing.rules import Advertise, MigStrategy, ReplicaRule, Rules, SharingStrategy
from gpuslice.slicing.selection import by_index, listed, refers_to


@dataclass(frozen=True)
class Catalogue:
    # By name.
    pools: tuple[Pool, ...]
    notices: tuple[Notice, ...] = ()


def catalogue(gpus: Sequence[Gpu], rules: Rules, placeholders: Sequence[Device] = ()) -> Catalogue:
    """`placeholders` are advertised like GPUs on platforms that list none (WSL, Tegra).

    Raises SlicingError if the rules contradict each other or the node, and NothingToAdvertise if
    they leave nothing of its GPUs.
    """
    sliced, notices = select_gpus(gpus, rules.memory) if rules.memory else ((), [])
    _check_one_way(rules.replicas, sliced)
    rest = [gpu for gpu in sorted(gpus, key=lambda gpu: gpu.index) if gpu not in sliced]
    # If all memory is sliced, GPUs in MIG mode are not advertised as whole GPUs instead.
    idle = [gpu for gpu in rest if gpu.mig_enabled] if _memory_only(rules) else []
    others = [gpu for gpu in rest if gpu not in idle]
    notices += map(_idle_notice, idle)
    memory: Pool | None = None
    if rules.memory is not None:
        memory, skipped = memory_pool(sliced, rules.memory)
        notices += skipped
    pools, more = _device_pools(others, rest, rules, placeholders)
    notices += more if gpus or placeholders else []
    if memory is not None:
        _check_free_name(memory, pools)
        pools.append(memory)
    if (gpus or placeholders) and not pools:
        reasons = "; ".join(notice.message for notice in notices)
        raise NothingToAdvertise(f"no GPU of this node can be advertised: {reasons}")
    return Catalogue(tuple(sorted(pools, key=lambda pool: pool.resource)), tuple(notices))


def _device_pools(
    gpus: Sequence[Gpu], present: Sequence[Gpu], rules: Rules, placeholders: Sequence[Device]
) -> tuple[list[Pool], list[Notice]]:
    """Pools of whole GPUs, MIG devices and replicas. `present` includes GPUs not advertised."""
    found, mig_notices = devices_of_gpus(gpus, rules.mig_strategy)
    devices = (*found, *placeholders)
    entries = [(device, named(device, rules)) for device in devices]
    unnamed = [device for device, entry in entries if entry is None]
    shared, replica_notices = apply_replica_rules(
        [entry for _, entry in entries if entry is not None],
        rules.replicas,
        _not_shareable(present, unnamed, rules.mig_strategy),
    )
    names = {one.resource for one in shared}
    pools = [_pool([one for one in shared if one.resource == name], rules) for name in names]
    return pools, [
        *unmatched_patterns(rules, devices),
        *mig_notices,
        *_mig_notices(gpus, unnamed, rules.mig_strategy),
        *replica_notices,
    ]


def _memory_only(rules: Rules) -> bool:
    everything = rules.memory is not None and rules.memory.devices.everything
    return everything and rules.mig_strategy is MigStrategy.NONE


def _idle_notice(gpu: Gpu) -> Notice:
    return Notice(
        Code.GPU_SKIPPED,
        f"skipping GPU {gpu.index} ({gpu.uuid}): MIG is enabled, so its memory is divided already. "
        "Set migStrategy to single or mixed to advertise its MIG devices",
    )


def _check_one_way(rules: Sequence[ReplicaRule], sliced: Sequence[Gpu]) -> None:
    for rule in rules:
        for gpu in sliced:
            if any(refers_to(reference, whole(gpu)) for reference in rule.devices.references):
                raise SlicingError(
                    Code.CONFLICTING_RULES,
                    f"GPU {gpu.index} ({gpu.uuid}) is selected for replicas ({rule.name}) and for "
                    "memory units: a GPU can be shared in one way only. Select different devices "
                    "in one of the rules (sharing.memory devices)",
                )


def _check_free_name(memory: Pool, pools: Sequence[Pool]) -> None:
    if any(pool.resource == memory.resource for pool in pools):
        raise SlicingError(
            Code.CONFLICTING_RULES,
            f"{memory.resource} is the name of both memory units and GPUs: rename one of them "
            "(sharing.memory.resource)",
        )


def _not_shareable(
    gpus: Sequence[Gpu], unnamed: Sequence[Device], strategy: MigStrategy
) -> list[NotShareable]:
    in_mig_mode = [gpu for gpu in gpus if gpu.mig_enabled]
    if strategy is MigStrategy.NONE:
        return [
            NotShareable(
                device,
                "is a MIG device, and migStrategy is none. Set migStrategy to single or mixed",
            )
            for gpu in in_mig_mode
            for device in mig_devices(gpu)
        ]
    return [
        *(
            NotShareable(
                whole(gpu), f"is in MIG mode: name its MIG devices, for example {gpu.index}:0"
            )
            for gpu in in_mig_mode
        ),
        *(
            NotShareable(device, "is a part of a GPU instance and is not advertised")
            for device in unnamed
        ),
    ]


def _mig_notices(
    gpus: Sequence[Gpu], unnamed: Sequence[Device], strategy: MigStrategy
) -> list[Notice]:
    empty = [gpu for gpu in gpus if gpu.mig_enabled and not gpu.mig]
    return [
        *(
            Notice(
                Code.GPU_SKIPPED,
                f"skipping GPU {gpu.index} ({gpu.uuid}): it is in MIG mode and has no MIG "
                "devices. Create them (nvidia-smi mig -cgi <profile> -C)",
            )
            for gpu in empty
            if strategy is MigStrategy.MIXED
        ),
        *(
            Notice(
                Code.MIG_DEVICE_SKIPPED,
                f"skipping MIG device {listed([device])}: its profile {device.mig.profile} is a "
                "part of a GPU instance and has no default name. Name it under resources.mig",
            )
            for device in unnamed
            if device.mig is not None
        ),
    ]


def _pool(devices: Sequence[SharedDevice], rules: Rules) -> Pool:
    resource = devices[0].resource
    ordered = sorted(devices, key=lambda one: by_index(one.device))
    replicating = [one.rule for one in ordered if one.rule is not None]
    strategies = {rule.strategy for rule in replicating}
    if len(strategies) > 1:
        raise SlicingError(
            Code.CONFLICTING_RULES,
            f"{resource} contains devices shared by time-slicing and devices shared by MPS: "
            "advertise one of them under another name (rename)",
        )
    _check_named(resource, devices)
    nested = {one.nested for one in devices if one.nested is not None}
    if len(nested) > 1:
        raise SlicingError(
            Code.CONFLICTING_RULES,
            f"one rule sets nested for {resource} and another rule sets it differently: "
            "advertise the devices under different names",
        )
    pool = Pool(
        resource,
        tuple(map(_part, ordered)),
        next(iter(strategies), SharingStrategy.NONE),
        one_share_per_container=any(r.fail_requests_greater_than_one for r in replicating),
        nested=next(iter(nested), rules.nested),
        advertise=_advertise(replicating),
        limited_by_daemon=(
            bool(replicating) and all(rule.limited_by_daemon for rule in replicating)
        ),
    )
    _check_nested(pool)
    _check_size(pool)
    return pool


def _check_named(resource: str, devices: Sequence[SharedDevice]) -> None:
    """Only limits that a rule names may be advertised under the name of a share."""
    named = [one for one in devices if one.rule is not None and one.rule.shares]
    if named and len(named) < len(devices):
        raise SlicingError(
            Code.CONFLICTING_RULES,
            f"{resource} is the name of a share and of other devices: rename one of them "
            "(rename, resources.gpus)",
        )


def _check_nested(pool: Pool) -> None:
    """Which devices a rule names is known here only; `config.nested_rules` rejects the rest."""
    if pool.nested and pool.sharing is SharingStrategy.MPS:
        raise SlicingError(
            Code.NESTED_NOT_LIMITED,
            f"{pool.resource} is shared by MPS and is for nested nodes (nested: host): a nested "
            "node would advertise the whole GPU without limits. Set nested: off for it, or use "
            "whole GPUs, MIG devices or sharing.timeSlicing for nested nodes",
        )


def _advertise(rules: Sequence[ReplicaRule]) -> Advertise:
    one_gpu = bool(rules) and all(rule.advertise is Advertise.ONE_GPU for rule in rules)
    return Advertise.ONE_GPU if one_gpu else Advertise.ALL


def _part(shared: SharedDevice) -> Part:
    device, rule, shares = shared.device, shared.rule, shared.shares
    if rule is None or shares is None:
        return Part(
            device, whole_id(device.uuid), Share(device.memory_mib), numa_node=device.numa_node
        )
    limited = rule.strategy is SharingStrategy.MPS
    return Part(
        device,
        shares.ids,
        shares.share,
        # One daemon for all shares of a GPU: in exclusive mode, a GPU has a single MPS server.
        daemon=rule.resource if limited else None,
        numa_node=device.numa_node,
    )


def _check_size(pool: Pool) -> None:
    if pool.list_bytes() <= MESSAGE_LIMIT_BYTES:
        return
    replicas = max(part.count for part in pool.parts)
    raise SlicingError(
        Code.TOO_MANY_DEVICES,
        f"{pool.resource} has up to {replicas} replicas of {len(pool.parts)} devices: their list "
        f"takes {pool.list_bytes()} bytes and the kubelet accepts {MESSAGE_LIMIT_BYTES}. "
        f"Use at most {_replicas_that_fit(pool.parts, replicas)} replicas",
    )


def _replicas_that_fit(parts: Sequence[Part], too_many: int) -> int:
    """By bisection."""
    fits = 1
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        ids = (replica_ids(part.device.uuid, min(part.count, middle)) for part in parts)
        size = sum(one.list_bytes(part.numa_node) for one, part in zip(ids, parts, strict=True))
        if size <= MESSAGE_LIMIT_BYTES:
            fits = middle
        else:
            too_many = middle
    return fits
