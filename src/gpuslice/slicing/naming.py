"""Which resource a device belongs to before it is shared."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
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


def without_effect(rules: Rules, devices: Sequence[Device]) -> list[str]:
    """A note for every rule that can name none of the devices; `*` is right wherever it stands."""
    models = sorted({d.model for d in devices if _takes_names_of_gpus(d, rules) and d.model})
    notes = [
        f"resources.gpus: no GPU to be named here matches {rule.pattern!r}: "
        f"{_instead(rule.pattern, models)}"
        for rule in _particular(rules.gpus)
        if not any(_fits(rule.pattern, model) for model in models)
    ]
    if rules.mig and rules.mig_strategy is MigStrategy.NONE:
        notes.append(
            "resources.mig has no effect: MIG devices are offered by the MIG strategy single or "
            "mixed (mig-strategy), and it is none"
        )
        return notes
    profiles = sorted({d.mig.profile for d in devices if d.mig is not None})
    return notes + [
        f"resources.mig: no MIG device here matches {rule.pattern!r}: "
        f"{_instead(rule.pattern, profiles)}"
        for rule in _particular(rules.mig or ())
        if not any(_fits(rule.pattern, profile) for profile in profiles)
    ]


def profile_name(profile: str) -> str:
    """A resource name has no `+`, as in 1g.10gb+me."""
    return f"nvidia.com/mig-{profile.replace('+', '.')}"


def is_partial(mig: MigDevice) -> bool:
    """Whether its compute instance has fewer slices than its GPU instance, as in 1c.2g.10gb."""
    return _PART_OF_AN_INSTANCE.match(mig.profile) is not None


def _matching(device: Device, rules: Rules) -> Iterator[NameRule]:
    if device.mig is not None:
        yield from (rule for rule in rules.mig or () if _fits(rule.pattern, device.mig.profile))
    if _takes_names_of_gpus(device, rules):
        yield from (rule for rule in rules.gpus if _fits(rule.pattern, device.model))


def _takes_names_of_gpus(device: Device, rules: Rules) -> bool:
    """Under `single`, MIG devices stand in for whole GPUs, so they take the names of those too."""
    return device.mig is None or rules.mig_strategy is MigStrategy.SINGLE


def _particular(rules: Sequence[NameRule]) -> Iterator[NameRule]:
    return (rule for rule in rules if rule.pattern.strip("*"))


def _instead(pattern: str, names: Sequence[str]) -> str:
    """Labels have dashes for the blanks of a model, and people copy from labels."""
    meant = [name for name in names if _fits(_loosely(pattern), _loosely(name))]
    if meant:
        return f"did you mean {meant[0]!r}?"
    return f"there is {', '.join(names)}" if names else "there is none"


def _loosely(text: str) -> str:
    return text.replace("-", " ").lower()


def _fits(pattern: str, text: str) -> bool:
    expression = ".*".join(re.escape(part) for part in pattern.split("*"))
    return re.fullmatch(expression, text, re.DOTALL) is not None
