"""Grants -> what their containers receive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuslice.config.settings import ContainerSettings
from gpuslice.inject.edits import ContainerEdits, merged
from gpuslice.inject.gpushare import gpushare_variables
from gpuslice.inject.mps import LimitKey, mps_client
from gpuslice.inject.nested import NestedLists, nested
from gpuslice.inject.visible import Host, visible
from gpuslice.mps.daemons import Daemon
from gpuslice.slicing.device import Device
from gpuslice.slicing.grant import Grant, GrantedPart
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.rules import SharingStrategy

Adjust = Callable[[Limits, Device], Limits]


@dataclass(frozen=True)
class Injection:
    """Everything that the edits depend on besides the grant."""

    containers: ContainerSettings
    host: Host
    limit_key: LimitKey
    # By name.
    daemons: Mapping[str, Daemon] = field(default_factory=dict)
    # Every device of the node, which nodes of nested clusters see.
    all_devices: tuple[Device, ...] = ()
    nested_lists: NestedLists = field(default_factory=NestedLists)


def container_edits(grants: Sequence[Grant], injection: Injection) -> list[ContainerEdits]:
    """One per grant. The grants are those of one Allocate call, that is, of one pod."""
    pod_units = sum(one.count for one in grants)
    return [edits_of_one(one, pod_units, injection) for one in grants]


def edits_of_one(
    grant: Grant,
    pod_units: int,
    injection: Injection,
    adjust: Adjust = lambda limits, device: limits,
) -> ContainerEdits:
    """`adjust` changes the limits that follow from the grant. It may raise GrantRefused."""
    parts = [_visible_devices(grant, injection)]
    if grant.pool.sharing is SharingStrategy.MEMORY:
        [granted] = grant.parts
        parts.append(gpushare_variables(granted, pod_units=pod_units))
    parts += [_limits(one, injection, adjust) for one in grant.parts if one.part.daemon]
    return merged(parts)


def _visible_devices(grant: Grant, injection: Injection) -> ContainerEdits:
    devices = [granted.part.device for granted in grant.parts]
    if grant.pool.nested:
        return nested(
            devices,
            injection.all_devices,
            injection.containers,
            injection.host,
            injection.nested_lists,
        )
    return visible(devices, injection.containers, injection.host)


def _limits(granted: GrantedPart, injection: Injection, adjust: Adjust) -> ContainerEdits:
    daemon = injection.daemons[granted.part.daemon or ""]
    limits = adjust(granted.limits, granted.part.device)
    return mps_client(granted.part.device.uuid, limits, daemon, injection.limit_key)
