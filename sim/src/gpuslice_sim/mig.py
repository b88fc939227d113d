"""MIG profiles, and layouts of MIG devices that fit on a GPU."""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpuslice_sim.errors import SimError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpuslice_sim.state import Value

MAX_DEVICES = 7
# The id of the first GPU instance of each size: 0 for 7 slices, 7 and up for 1 slice.
_FIRST_GI = {7: 0, 4: 1, 3: 1, 2: 3, 1: 7}


@dataclass(frozen=True)
class MigProfile:
    """A size of GPU instances. `number` is the constant of NVML, `id` is that of nvidia-smi."""

    name: str
    number: int
    id: int
    slices: int
    max_instances: int
    sms: int
    memory_mib: int
    engines: tuple[int, ...]
    memory_slices: int
    starts: tuple[int, ...]

    @classmethod
    def of(cls, name: str, row: Sequence[Any]) -> MigProfile:
        number, profile_id, slices, max_instances, sms, memory, *engines, size, starts = row
        return cls(
            name, number, profile_id, slices, max_instances, sms, memory,
            tuple(engines), size, tuple(starts),
        )  # fmt: skip

    @classmethod
    def parse(cls, number: int, text: str) -> MigProfile:
        """Parses `text`."""
        *numbers, starts, name = text.split()
        row = [number, *map(int, numbers), [int(start) for start in starts.split(",")]]
        return cls.of(name, row)

    @property
    def text(self) -> str:
        """The value of the state key, which the driver library reads."""
        numbers = (
            self.id, self.slices, self.max_instances, self.sms, self.memory_mib,
            *self.engines, self.memory_slices,
        )  # fmt: skip
        return f"{' '.join(map(str, numbers))} {','.join(map(str, self.starts))} {self.name}"


def profile_keys(profiles: Mapping[str, MigProfile]) -> dict[str, Value]:
    """The keys of a GPU record for MIG profiles."""
    keys: dict[str, Value] = {"mig.capable": 1, "mig.max": MAX_DEVICES}
    return keys | {f"mig.profile.{p.number}": p.text for p in profiles.values()}


def layout_keys(
    gpu_uuid: str, profiles: Mapping[str, MigProfile], layout: Sequence[str]
) -> dict[str, Value]:
    """The keys of a GPU record for MIG devices. An empty layout disables MIG."""
    mode = 1 if layout else 0
    keys: dict[str, Value] = {"mig.mode": mode, "mig.pending": mode, "mig.count": len(layout)}
    chosen = [_find(profiles, name) for name in layout]
    starts = place(chosen)
    instances = _instance_ids(chosen)
    for number, (profile, start, gi) in enumerate(zip(chosen, starts, instances, strict=True)):
        origin = uuid.UUID(gpu_uuid.removeprefix("GPU-"))
        keys |= {
            f"mig.{number}.uuid": f"MIG-{uuid.uuid5(origin, f'{profile.name}/{start}')}",
            f"mig.{number}.gi": gi,
            f"mig.{number}.ci": 0,
            f"mig.{number}.profile": profile.number,
            f"mig.{number}.start": start,
        }
    return keys


def place(layout: Sequence[MigProfile]) -> list[int]:
    """The start of each instance, so that no instances overlap."""
    order = sorted(range(len(layout)), key=lambda i: -layout[i].memory_slices)
    starts = _search([layout[i] for i in order], set(), sum(p.slices for p in layout))
    if starts is None:
        names = ", ".join(profile.name for profile in layout)
        raise SimError(f"MIG layout {names} does not fit on one GPU (7 slices, 8 of memory)")
    by_position = dict(zip(order, starts, strict=True))
    return [by_position[i] for i in range(len(layout))]


def _search(layout: Sequence[MigProfile], taken: set[int], slices: int) -> list[int] | None:
    if slices > MAX_DEVICES:
        return None
    if not layout:
        return []
    first, rest = layout[0], layout[1:]
    for start in reversed(first.starts) if first.memory_slices > 2 else first.starts:
        cells = set(range(start, start + first.memory_slices))
        if cells & taken:
            continue
        found = _search(rest, taken | cells, slices)
        if found is not None:
            return [start, *found]
    return None


def _instance_ids(layout: Sequence[MigProfile]) -> list[int]:
    used: set[int] = set()
    for_layout: list[int] = []
    for profile in layout:
        gi = _FIRST_GI[profile.slices]
        while gi in used:
            gi += 1
        used.add(gi)
        for_layout.append(gi)
    return for_layout


def _find(profiles: Mapping[str, MigProfile], name: str) -> MigProfile:
    if name not in profiles:
        raise SimError(f"MIG profile {name!r} does not exist: choose one of {', '.join(profiles)}")
    return profiles[name]
