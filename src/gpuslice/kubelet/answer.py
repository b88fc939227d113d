"""What a container receives, in the kubelet's terms but without its wire format."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Mount:
    host_path: str
    container_path: str
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class DeviceNode:
    host_path: str
    container_path: str
    permissions: str = "rw"


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    devices: tuple[DeviceNode, ...] = ()
    annotations: dict[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.env or self.mounts or self.devices or self.annotations or self.cdi_devices)


NOTHING = ContainerAnswer()


def merged(answers: Iterable[ContainerAnswer]) -> ContainerAnswer:
    """One answer from several that concern different things; a clash is our own mistake."""
    answers = [answer for answer in answers if answer]
    if len(answers) == 1:  # as most often, and the kubelet waits for it
        return answers[0]
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    devices: list[DeviceNode] = []
    annotations: dict[str, str] = {}
    cdi_devices: list[str] = []
    for answer in answers:
        clash = (env.keys() & answer.env.keys()) | (annotations.keys() & answer.annotations.keys())
        if clash:
            raise ValueError(f"two parts of an answer set the same names: {sorted(clash)}")
        env |= answer.env
        annotations |= answer.annotations
        mounts += answer.mounts
        devices += answer.devices
        cdi_devices += answer.cdi_devices
    return ContainerAnswer(env, tuple(mounts), tuple(devices), annotations, tuple(cdi_devices))
