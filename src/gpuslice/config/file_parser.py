"""The parts of the file that no flag has: names, replicas, how labels are published."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, product

from gpuslice.config.errors import ConfigError
from gpuslice.config.file_schema import (
    ConfigFile,
    GfdFlags,
    LimitedResources,
    NamedDevices,
    ReplicatedResources,
)
from gpuslice.config.file_sections import FileSections
from gpuslice.config.option_values import OptionValue
from gpuslice.config.settings import LabelSettings, Nested
from gpuslice.config.value_parsers import interval_seconds, memory_reserve, resource_name, selection
from gpuslice.slicing.rules import NameRule, ReplicaRule, SharingStrategy

_SHARED = ".shared"


def file_rules(file: ConfigFile) -> FileSections:
    time_slicing = _replicas(
        file.sharing.time_slicing, SharingStrategy.TIME_SLICING, "sharing.timeSlicing"
    )
    reserve_mib = _reserve(file.sharing.mps)
    mps = tuple(
        replace(rule, reserve_mib=reserve_mib)
        for rule in _replicas(file.sharing.mps, SharingStrategy.MPS, "sharing.mps")
    )
    _check_one_strategy_a_name(time_slicing, mps)
    replicas = (*time_slicing, *mps)
    _check_claims(replicas)
    return FileSections(
        gpus=_names("resources.gpus", file.resources.gpus),
        mig=_names("resources.mig", file.resources.mig),
        replicas=replicas,
        memory=file.sharing.memory is not None,
        labels=_labels(file.flags.gfd, use_node_feature_api=file.flags.use_node_feature_api),
    )


def _names(place: str, entries: tuple[NamedDevices, ...]) -> tuple[NameRule, ...]:
    rules = []
    for position, entry in enumerate(entries):
        where = f"{place}[{position}]"
        if not entry.pattern:
            raise ConfigError(f"{where}.pattern", entry.pattern, "no pattern specified; write *")
        if not entry.name:
            raise ConfigError(f"{where}.name", entry.name, "no name specified; as nvidia.com/gpu")
        rules.append(
            NameRule(
                entry.pattern,
                resource_name(f"{where}.name", entry.name),
                _nested(f"{where}.nested", entry.nested),
            )
        )
    return tuple(rules)


def _reserve(section: LimitedResources | None) -> int:
    if section is None or section.reserve is None:
        return 0
    return memory_reserve(OptionValue(str(section.reserve), "sharing.mps.reserve"))


def _replicas(
    section: ReplicatedResources | None, strategy: SharingStrategy, place: str
) -> tuple[ReplicaRule, ...]:
    if section is None:
        return ()
    if not section.resources:
        raise ConfigError(
            f"{place}.resources", [], "no resources specified; list at least one with its replicas"
        )
    # A client of MPS was promised its share alone; with time-slicing nobody is promised anything.
    fail = section.fail_requests_greater_than_one
    fails = strategy is SharingStrategy.MPS if fail is None else fail
    return tuple(_rules(section, strategy, place, fails=fails))


def _rules(
    section: ReplicatedResources, strategy: SharingStrategy, place: str, *, fails: bool
) -> Iterator[ReplicaRule]:
    for position, entry in enumerate(section.resources):
        where = f"{place}.resources[{position}]"
        if not entry.name:
            raise ConfigError(f"{where}.name", entry.name, "no name specified; as nvidia.com/gpu")
        if entry.replicas is None or entry.replicas < 1:
            raise ConfigError(
                f"{where}.replicas", entry.replicas, "number of replicas must be >= 1"
            )
        name = resource_name(f"{where}.name", entry.name)
        rename = entry.rename or (name + _SHARED if section.rename_by_default else None)
        yield ReplicaRule(
            strategy,
            name,
            entry.replicas,
            None if rename is None else resource_name(f"{where}.rename", rename),
            selection(f"{where}.devices", entry.devices),
            fails,
            _nested(f"{where}.nested", entry.nested),
        )


def _nested(
    field: str,
    value: str | bool | None,  # noqa: FBT001 (as the file has it)
) -> bool | None:
    """`host` and `off`, as the node's own setting has them, or a boolean."""
    if value is None or isinstance(value, bool):
        return value
    if value == Nested.GUEST.value:
        raise ConfigError(
            field, value, "a node is a guest as a whole (flags.nested); use host or off here"
        )
    if value not in (Nested.HOST.value, Nested.OFF.value):
        raise ConfigError(field, value, "choose one of host, off")
    return value == Nested.HOST.value


def _check_one_strategy_a_name(
    time_slicing: tuple[ReplicaRule, ...], mps: tuple[ReplicaRule, ...]
) -> None:
    both = {rule.resource for rule in time_slicing} & {rule.resource for rule in mps}
    if both:
        raise ConfigError(
            "sharing.mps",
            sorted(both)[0],
            "sharing.timeSlicing offers replicas under this name too; set rename for one of them",
        )


def _check_claims(rules: tuple[ReplicaRule, ...]) -> None:
    """What a glance at the rules shows; the node's devices show the rest."""
    for one, other in combinations(rules, 2):
        if one.name != other.name:
            continue
        if one.devices.everything or other.devices.everything:
            raise ConfigError(
                "sharing",
                one.name,
                "one rule takes all of its devices and another rule some of them; "
                "list devices in each",
            )
        for a, b in product(one.devices.references, other.devices.references):
            if a == b:
                raise ConfigError("sharing", a, f"two rules for {one.name} name this device")


def _labels(gfd: GfdFlags, *, use_node_feature_api: bool | None) -> LabelSettings:
    default = LabelSettings()
    interval = default.sleep_seconds
    if gfd.sleep_interval is not None:
        interval = interval_seconds("flags.gfd.sleepInterval", gfd.sleep_interval)
    return LabelSettings(
        oneshot=bool(gfd.oneshot),
        no_timestamp=bool(gfd.no_timestamp),
        sleep_seconds=interval,
        output_file=default.output_file if gfd.output_file is None else gfd.output_file,
        machine_type_file=(
            default.machine_type_file if gfd.machine_type_file is None else gfd.machine_type_file
        ),
        use_node_feature_api=use_node_feature_api is not False,
    )
