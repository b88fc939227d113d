"""Rejects shares for nested nodes that could not be limited to them.

The list of a nested node names GPUs. The agent inside advertises each of them as a whole and sets
no limits, so a share of a GPU would become the whole GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpuslice.config.errors import ConfigError
from gpuslice.slicing.rules import MigStrategy, NameRule, ReplicaRule, Rules, SharingStrategy

_FIELD = "nested"
_HOST = "host"


def check_nested_rules(rules: Rules) -> None:
    """Raises ConfigError for what is certain without the GPUs of the node."""
    for rule in rules.replicas:
        if rule.strategy is SharingStrategy.MPS and _certainly_nested(rule, rules):
            raise shares_of_nested_node(_FIELD, _HOST, rule.name)
    memory = rules.memory
    if (
        rules.nested
        and memory is not None
        and memory.devices.everything
        and rules.mig_strategy is MigStrategy.NONE
    ):
        raise ConfigError(
            _FIELD,
            _HOST,
            f"sharing.memory divides the memory of all GPUs ({memory.resource}), and a nested node "
            "cannot be limited to memory units. Set memory-devices to none, or to the GPUs that "
            "are not for nested nodes",
        )


def shares_of_nested_node(field: str, value: object, name: str) -> ConfigError:
    return ConfigError(
        field,
        value,
        f"sharing.mps shares {name}, and a nested node would advertise the whole GPU without "
        "limits. Set nested: off for this entry of sharing.mps.resources, or use whole GPUs, MIG "
        "devices or sharing.timeSlicing for nested nodes",
    )


def _certainly_nested(rule: ReplicaRule, rules: Rules) -> bool:
    """The rule decides, else the rules that give the devices their name, else the node."""
    if rule.nested is not None:
        return rule.nested
    possible = (*_reachable(rules.gpus), *_reachable(rules.mig or ()))
    named = [one.nested for one in possible if one.name == rule.name]
    return all(rules.nested if one is None else one for one in named or [None])


def _reachable(rules: Sequence[NameRule]) -> Iterator[NameRule]:
    """The first rule that matches a device names it."""
    for rule in rules:
        yield rule
        if not rule.pattern.strip("*"):
            return
