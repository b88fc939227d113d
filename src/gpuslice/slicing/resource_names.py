"""The resource that a device belongs to before it is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gpuslice.codes import Code
from gpuslice.slicing.device import Device
from gpuslice.slicing.gpu import MigDevice
from gpuslice.slicing.notice import Notice
from gpuslice.slicing.rules import DEFAULT_NAME, MigStrategy, NameRule, Rules

_PART_OF_AN_INSTANCE = re.compile(r"[0-9]+c\.")


@dataclass(frozen=True, slots=True)
class NamedDevice:
    device: Device
    name: str
    # Whether the rule sets nested; None: it does not mention it.
    nested: bool | None = None


def named(device: Device, rules: Rules) -> NamedDevice | None:
    """By the first rule that matches, else the default name.

    None: the MIG device is a part of a GPU instance. It has no default name, because the name of
    its profile would promise the whole instance.
    """
    rule = next(_matching(device, rules), None)
    if rule is not None:
        return NamedDevice(device, rule.name, rule.nested)
    if device.mig is None or rules.mig_strategy is not MigStrategy.MIXED:
        return NamedDevice(device, DEFAULT_NAME)
    return None if is_partial(device.mig) else NamedDevice(device, profile_name(device.mig.profile))


def unmatched_patterns(rules: Rules, devices: Sequence[Device]) -> list[Notice]:
    """A notice for each rule that names no device. The pattern `*` needs none."""
    return [Notice(Code.RULE_WITHOUT_EFFECT, message) for message in _unmatched(rules, devices)]


def _unmatched(rules: Rules, devices: Sequence[Device]) -> Iterator[str]:
    models = sorted({d.model for d in devices if _takes_names_of_gpus(d, rules) and d.model})
    for rule in _particular(rules.gpus):
        if not any(_fits(rule.pattern, model) for model in models):
            hint = _instead(rule.pattern, models)
            yield f"resources.gpus: no GPU to name on this node matches {rule.pattern!r}: {hint}"
    if rules.mig and rules.mig_strategy is MigStrategy.NONE:
        yield (
            "resources.mig has no effect: migStrategy is none. Set it to single or mixed to "
            "advertise MIG devices"
        )
        return
    profiles = sorted({d.mig.profile for d in devices if d.mig is not None})
    for rule in _particular(rules.mig or ()):
        if not any(_fits(rule.pattern, profile) for profile in profiles):
            hint = _instead(rule.pattern, profiles)
            yield f"resources.mig: no MIG device on this node matches {rule.pattern!r}: {hint}"


def profile_name(profile: str) -> str:
    """A resource name must not contain the `+` of 1g.10gb+me."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def is_partial(mig: MigDevice) -> bool:
    """Whether its compute instance has fewer slices than its GPU instance (1c.2g.10gb)."""
    return _PART_OF_AN_INSTANCE.match(mig.profile) is not None


def _matching(device: Device, rules: Rules) -> Iterator[NameRule]:
    if device.mig is not None:
        yield from (rule for rule in rules.mig or () if _fits(rule.pattern, device.mig.profile))
    if _takes_names_of_gpus(device, rules):
        yield from (rule for rule in rules.gpus if _fits(rule.pattern, device.model))


def _takes_names_of_gpus(device: Device, rules: Rules) -> bool:
    """Under `single`, MIG devices replace whole GPUs, so rules for GPUs name them, too."""
    return device.mig is None or rules.mig_strategy is MigStrategy.SINGLE


def _particular(rules: Sequence[NameRule]) -> Iterator[NameRule]:
    return (rule for rule in rules if rule.pattern.strip("*"))


def _instead(pattern: str, names: Sequence[str]) -> str:
    """People copy models from labels, which have dashes instead of blanks."""
    meant = [name for name in names if _fits(_loosely(pattern), _loosely(name))]
    if meant:
        return f"did you mean {meant[0]!r}?"
    return f"there is {', '.join(names)}" if names else "there is none"


def _loosely(text: str) -> str:
    return text.replace("-", " ").lower()


def _fits(pattern: str, text: str) -> bool:
    """`*` matches any text. Linear: a pattern of many `*` must not take longer than the text."""
    first, *rest = pattern.split("*")
    if not rest:
        return pattern == text
    *inner, last = rest
    if not text.startswith(first):
        return False
    position = len(first)
    for part in inner:
        found = text.find(part, position)
        if found < 0:
            return False
        position = found + len(part)
    return len(text) - position >= len(last) and text.endswith(last)
