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
class ContainerAnswer:
    env: dict[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()


def merged(answers: Iterable[ContainerAnswer]) -> ContainerAnswer:
    """One answer from several that concern different things; a clash is our own mistake."""
    env: dict[str, str] = {}
    mounts: list[Mount] = []
    for answer in answers:
        clash = env.keys() & answer.env.keys()
        if clash:
            raise ValueError(f"two parts of an answer set the same variables: {sorted(clash)}")
        env |= answer.env
        mounts += answer.mounts
    return ContainerAnswer(env, tuple(mounts))
