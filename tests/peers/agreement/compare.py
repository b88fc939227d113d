"""What two plugins said, made comparable. Only accepted differences are undone."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api

from .differences import MPS_LIMITS, MPS_PRE_START, MPS_PRIVILEGED_SOCKET, MPS_SHM, Difference
from .links import closeness
from .pair import Pair, Refusal

_DEV_SHM = "/dev/shm"
_OWN_LIMITS = (
    "CUDA_VISIBLE_DEVICES",
    "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT",
    "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
)


@dataclass(frozen=True)
class Plain:
    """An answer without what may differ; what is left is compared as it is."""

    env: dict[str, str]
    mounts: list[tuple[str, str, bool]]
    nodes: list[tuple[str, str, str]]
    annotations: list[tuple[str, str]]
    cdi: list[str]


def registrations_agree(pair: Pair, accepted: Collection[Difference] = ()) -> None:
    """Neither knows a resource that the other has not, and both announce theirs alike."""
    for side in (pair.theirs, pair.ours):
        assert set(side.kubelet.resources()) == pair.resources, side.name
    for resource in pair.resources:
        theirs, ours = pair.theirs.registered(resource), pair.ours.registered(resource)
        if MPS_PRE_START in accepted:
            ours = (*ours[:3], (False, True), (False, True))
        assert ours == theirs


def lists_agree(pair: Pair) -> None:
    for resource in pair.resources:
        ours = pair.ours.listed(resource)
        assert ours == pair.theirs.listed(resource)
        assert ours


def allocations_agree(
    pair: Pair,
    resource: str,
    *containers: Sequence[str],
    accepted: Collection[Difference] = (),
) -> list[Plain] | Refusal:
    """Returns what both said."""
    theirs = pair.theirs.allocate(resource, containers)
    ours = pair.ours.allocate(resource, containers)
    if isinstance(theirs, Refusal):
        assert isinstance(ours, Refusal), f"NVIDIA's refuses {containers}: {theirs.text}"
        # REMEDY
        code, _, words = ours.text.partition(": ")
        assert code in list(Code)
        assert words.startswith(theirs.text)
        return theirs
    assert not isinstance(ours, Refusal), f"only we refuse {containers}: {ours}"
    expected = [plain(answer, pair) for answer in theirs]
    assert [plain(answer, pair, accepted) for answer in ours] == expected
    return expected


def _of_the_node(host: str, container: str) -> str:
    """<mps-root>/<resource>/shm as <mps-root>/shm; a resource has two parts."""
    return str(Path(host).parents[2] / "shm") if container == _DEV_SHM else host


def plain(
    answer: api.ContainerAllocateResponse, pair: Pair, accepted: Collection[Difference] = ()
) -> Plain:
    env = dict(answer.envs)
    if MPS_LIMITS in accepted:
        for name in _OWN_LIMITS:
            del env[name]
    annotations = [
        # ANNOTATION_KEY
        (re.sub("_[-0-9a-f]{36}$", "_", key), value)
        for key, value in answer.annotations.items()
    ]
    mounts = [(m.host_path, m.container_path, m.read_only) for m in answer.mounts]
    if MPS_SHM in accepted:
        mounts = [(_of_the_node(*mount[:2]), *mount[1:]) for mount in mounts]
    if MPS_PRIVILEGED_SOCKET in accepted:
        mounts = [mount for mount in mounts if not mount[1].endswith("/control_privileged")]
    # NODE_ONCE
    nodes = list(
        dict.fromkeys((d.host_path, d.container_path, d.permissions) for d in answer.devices)
    )
    cdi = [device.name for device in answer.cdi_devices]
    if not pair.by_index:
        return Plain(env, mounts, sorted(nodes), annotations, cdi)
    # ORDER
    return Plain(
        {name: _sorted(value) for name, value in env.items()},
        sorted(mounts),
        sorted(nodes),
        [(key, _sorted(value)) for key, value in annotations],
        sorted(cdi),
    )


def preferences_agree(
    pair: Pair, resource: str, available: Sequence[str], must_include: Sequence[str], size: int
) -> None:
    """For questions that NVIDIA's answers; what it does not is for tests of SURE_ADVICE."""
    theirs = pair.theirs.preferred(resource, available, must_include, size)
    ours = pair.ours.preferred(resource, available, must_include, size)
    assert not isinstance(theirs, Refusal), theirs
    assert not isinstance(ours, Refusal), ours
    for chosen in (theirs, ours):
        assert len(chosen) == len(set(chosen)) == size
        assert set(must_include) <= set(chosen) <= {*available, *must_include}
    whole = {gpu.uuid for gpu in pair.node.gpus()}
    if whole.issuperset(available):
        # CLOSER_GROUP
        assert closeness(pair.node, ours) >= closeness(pair.node, theirs)
        return
    free = set(available) - set(must_include)
    everything = pair.ours.kubelet.devices(resource)
    held = set(everything) - free

    def use(chosen: Iterable[str]) -> list[int]:
        """Of each device that could be chosen from, how much is used afterwards."""
        used = Counter(_device(i) for i in held | set(chosen))
        return sorted(used[device] for device in {_device(i) for i in free})

    def use_of_gpus(chosen: Iterable[str]) -> int:
        used = Counter(_gpu(pair, i) for i in held | set(chosen))
        return sum(count * count for count in used.values())

    if any(i.startswith("MIG-") for i in available):
        # SPREAD_OVER_GPUS
        assert use_of_gpus(ours) <= use_of_gpus(theirs)
    else:
        assert use(ours) == use(theirs)


def _device(device_id: str) -> str:
    return device_id.partition("::")[0]


def _gpu(pair: Pair, device_id: str) -> int:
    wanted = _device(device_id)
    return next(
        gpu.index
        for gpu in pair.node.gpus()
        if wanted == gpu.uuid or any(mig.uuid == wanted for mig in gpu.mig)
    )


def _sorted(value: str) -> str:
    return ",".join(sorted(value.split(",")))
