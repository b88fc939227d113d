"""Which resource a device belongs to before it is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import MigDevice
from gpuslice.slicing.rules import DEFAULT_NAME, MigStrategy, NameRule, Rules

_PART_OF_AN_INSTANCE = re.compile(r"[0-9]+c\.")


@dataclass(frozen=True, slots=True)
class Named:
    device: Device
    name: str
    # What the rule says of nested clusters; None: nothing.
    nested: bool | None = None


def named(device: Device, rules: Rules) -> Named | None:
    """The first rule that matches counts, and behind all rules stand the usual names.

    None: the MIG device is a part of a GPU instance. It has no usual name, since the name of
    its profile would promise the whole instance.
    """
    rule = next(_matching(device, rules), None)
    if rule is not None:
        return Named(device, rule.name, rule.nested)
    if device.mig is None or rules.mig_strategy is not MigStrategy.MIXED:
        return Named(device, DEFAULT_NAME)
    return None if is_partial(device.mig) else Named(device, profile_name(device.mig.profile))


def profile_name(profile: str) -> str:
    """A resource name has no `+`, as in 1g.10gb+me."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def is_partial(mig: MigDevice) -> bool:
    """Whether its compute instance has fewer slices than its GPU instance, as in 1c.2g.10gb."""
    return _PART_OF_AN_INSTANCE.match(mig.profile) is not None


def _matching(device: Device, rules: Rules) -> Iterator[NameRule]:
    if device.mig is not None:
        yield from (rule for rule in rules.mig or () if _fits(rule.pattern, device.mig.profile))
    # Under `single`, MIG devices stand in for whole GPUs, so they take the names of those too.
    if device.mig is None or rules.mig_strategy is MigStrategy.SINGLE:
        yield from (rule for rule in rules.gpus if _fits(rule.pattern, device.model))


def _fits(pattern: str, text: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, text, re.DOTALL) is not None
