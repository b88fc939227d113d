"""How the containers of a node get their limits: by CDI, by Allocate's environment, or by both."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import Bind, Settings
from gpuslice.kubelet.pod_resources import pod_resources_socket
from gpuslice.mps.driver_support import has_static_partitions
from gpuslice.node.errors import ProgramError
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import SharingStrategy


@dataclass(frozen=True, slots=True)
class BindingPlan:
    # Whether Allocate's answers name a CDI specification.
    names_cdi: bool = False
    # Whether they contain nothing else.
    strict: bool = False
    # Why they do not.
    reason: str = ""
    # Whether the settings ask for this.
    is_chosen: bool = True


def binds_late(pool: Pool) -> bool:
    """Whether the containers of this pool get shares with limits, and not whole devices."""
    return pool.sharing is SharingStrategy.MEMORY or bool(pool.daemons)


def limited_resources(pools: Iterable[Pool]) -> frozenset[str]:
    """Those whose containers get limits. Of these, a container can have one."""
    return frozenset(pool.resource for pool in pools if binds_late(pool))


def plan_binding(settings: Settings, pools: Iterable[Pool]) -> BindingPlan | None:
    """None: no pool has limits. Raises ProgramError if CDI is required and cannot be used. Blocks.

    Whether the runtime applies CDI specifications is not known here: see `LateBinder`.
    """
    if not any(map(binds_late, pools)):
        return None
    if settings.bind is Bind.ENV:
        return BindingPlan(reason="the option bind is env")
    missing = _what_is_missing(settings)
    if settings.bind is Bind.CDI:
        if missing:
            raise ProgramError(Code.CDI_SPEC_NOT_WRITTEN, f"bind: cdi cannot be used: {missing}")
        return BindingPlan(names_cdi=True, strict=True)
    if missing:
        return BindingPlan(reason=missing, is_chosen=False)
    return BindingPlan(names_cdi=True)


def check_partitions(pools: Iterable[Pool], plan: BindingPlan | None, driver_version: str) -> None:
    """Raises ProgramError if containers cannot get static partitions of SMs."""
    if not any(pool.has_partitions for pool in pools):
        return
    problem = ""
    if not has_static_partitions(driver_version):
        problem = f"driver {driver_version} has no static partitions; 590 and newer have them"
    elif plan is None or not plan.names_cdi:
        reason = "" if plan is None else plan.reason
        problem = f"containers get their partitions by CDI, and that cannot be used: {reason}"
    if problem:
        raise ProgramError(
            Code.SM_PARTITION_UNAVAILABLE, f"threads: sm_partition cannot be used: {problem}"
        )


def _what_is_missing(settings: Settings) -> str:
    """Empty: nothing."""
    if not settings.kubelet_socket:
        return "the agent does not register with a kubelet"
    directory = Path(settings.cdi.directory)
    if not directory.is_dir():
        return f"{directory} does not exist: mount the host's directory of CDI specifications"
    if not os.access(directory, os.W_OK):
        return f"{directory} is not writable: mount it writable"
    lists = pod_resources_socket(Path(settings.kubelet_socket)).parent
    if not lists.is_dir():
        return f"{lists} does not exist: mount the kubelet's directory"
    return ""
