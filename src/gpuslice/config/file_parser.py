"""Parses and validates the configuration file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.file_content import FileContent
from gpuslice.config.file_flags import option_values_in_file
from gpuslice.config.file_schema import (
    GfdFlags,
    LimitedResource,
    LimitedResources,
    NamedDevices,
    ReplicatedResource,
    ReplicatedResources,
    Sharing,
    read_config_file,
)
from gpuslice.config.named_shares import parse_named_shares
from gpuslice.config.nested_rules import shares_of_nested_node
from gpuslice.config.settings import LabelSettings, Nested
from gpuslice.config.value_parsers import (
    parse_choice,
    parse_interval,
    parse_memory_reserve,
    parse_resource_name,
    parse_selection,
    parse_threads,
)
from gpuslice.slicing.rules import (
    Advertise,
    DaemonLimits,
    NamedShare,
    NameRule,
    Overcommit,
    ReplicaRule,
    SharingStrategy,
)
from gpuslice.slicing.threads import ThreadRule, ThreadStrategy

_SHARED = ".shared"
_NO_NAME = "no name specified; use a resource name, for example nvidia.com/gpu"


def parse_config_file(path: Path, *, lenient: bool = False) -> FileContent:
    """Raises ConfigError. With `lenient`, an unknown key is a warning."""
    file, unknown = read_config_file(path, lenient=lenient)
    return FileContent(
        values=option_values_in_file(file, path, OPTIONS),
        gpus=_name_rules("resources.gpus", file.resources.gpus),
        mig=_name_rules("resources.mig", file.resources.mig),
        replicas=_replica_rules(file.sharing),
        labels=_labels(file.flags.gfd, use_node_feature_api=file.flags.use_node_feature_api),
        has_memory=file.sharing.memory is not None,
        warnings=unknown,
    )


def _name_rules(section: str, entries: tuple[NamedDevices, ...]) -> tuple[NameRule, ...]:
    rules = []
    for position, entry in enumerate(entries):
        key = f"{section}[{position}]"
        if not entry.pattern:
            raise ConfigError(f"{key}.pattern", entry.pattern, "no pattern specified; use *")
        if not entry.name:
            raise ConfigError(f"{key}.name", entry.name, _NO_NAME)
        rules.append(
            NameRule(
                entry.pattern,
                parse_resource_name(f"{key}.name", entry.name),
                _nested(f"{key}.nested", entry.nested),
            )
        )
    return tuple(rules)


def _replica_rules(sharing: Sharing) -> tuple[ReplicaRule, ...]:
    time_slicing = _rules_of_strategy(
        sharing.time_slicing, SharingStrategy.TIME_SLICING, "sharing.timeSlicing"
    )
    mps = _limited(sharing.mps, _rules_of_strategy(sharing.mps, SharingStrategy.MPS, "sharing.mps"))
    _check_daemon_limits(mps)
    _check_names(time_slicing, mps)
    _check_devices((*time_slicing, *mps))
    return (*time_slicing, *mps)


def _limited(
    section: LimitedResources | None, rules: tuple[ReplicaRule, ...]
) -> tuple[ReplicaRule, ...]:
    """The rules with what the section sets for all of them."""
    return tuple(
        replace(
            rule,
            reserve_mib=_reserve(section),
            advertise=_advertise(section),
            daemon_limits=_daemon_limits(section),
            overcommit=_overcommit(section),
        )
        for rule in rules
    )


def _overcommit(section: LimitedResources | None) -> Overcommit:
    if section is None or section.overcommit is None:
        return Overcommit.REFUSE
    return parse_choice("sharing.mps.overcommit", section.overcommit, Overcommit)


def _reserve(section: LimitedResources | None) -> int:
    if section is None or section.reserve is None:
        return 0
    return parse_memory_reserve("sharing.mps.reserve", str(section.reserve))


def _advertise(section: LimitedResources | None) -> Advertise:
    if section is None or section.advertise is None:
        return Advertise.ONE_GPU
    return parse_choice("sharing.mps.advertise", section.advertise, Advertise)


def _daemon_limits(section: LimitedResources | None) -> DaemonLimits | None:
    if section is None or section.daemon_limits is None:
        return None
    return parse_choice("sharing.mps.daemonLimits", section.daemon_limits, DaemonLimits)


def _check_daemon_limits(rules: tuple[ReplicaRule, ...]) -> None:
    """A limit of the daemon must not take from a container what it was granted."""
    for rule in rules:
        if not rule.limited_by_daemon:
            continue
        if rule.shares:
            raise ConfigError(
                "sharing.mps.daemonLimits",
                DaemonLimits.REPLICA.value,
                f"the shares of {rule.name} differ, and the daemon has the same limits for all of "
                "them; use none",
            )
        if not rule.fail_requests_greater_than_one:
            raise ConfigError(
                "sharing.mps.daemonLimits",
                DaemonLimits.REPLICA.value,
                "the daemon would limit a container with several replicas to one; use none, or "
                "set failRequestsGreaterThanOne to true",
            )


def _rules_of_strategy(
    section: ReplicatedResources | None, strategy: SharingStrategy, section_key: str
) -> tuple[ReplicaRule, ...]:
    if section is None:
        return ()
    if not section.resources:
        # NVIDIA's words, for people who search for them.
        raise ConfigError(
            f"{section_key}.resources",
            [],
            "no resources specified; list at least one with its replicas",
        )
    # A replica of MPS has its own limits, so several replicas need an explicit setting. Replicas of
    # time-slicing have no limits.
    fail = section.fail_requests_greater_than_one
    fails = strategy is SharingStrategy.MPS if fail is None else fail
    return tuple(_rules_of_section(section, strategy, section_key, fails=fails))


def _rules_of_section(
    section: ReplicatedResources, strategy: SharingStrategy, section_key: str, *, fails: bool
) -> Iterator[ReplicaRule]:
    for position, entry in enumerate(section.resources):
        key = f"{section_key}.resources[{position}]"
        if not entry.name:
            raise ConfigError(f"{key}.name", entry.name, _NO_NAME)
        name = parse_resource_name(f"{key}.name", entry.name)
        nested = _nested(f"{key}.nested", entry.nested)
        if nested and strategy is SharingStrategy.MPS:
            raise shares_of_nested_node(f"{key}.nested", entry.nested, name)
        rename = entry.rename or (name + _SHARED if section.rename_by_default else None)
        if rename is not None:
            rename = parse_resource_name(f"{key}.rename", rename)
        threads = _threads(key, entry)
        shares: tuple[NamedShare, ...] = ()
        if isinstance(entry, LimitedResource):
            shares = parse_named_shares(key, entry, rename or name, threads)
        yield ReplicaRule(
            strategy,
            name,
            sum(share.count for share in shares) if shares else _replicas(key, entry),
            rename,
            parse_selection(f"{key}.devices", entry.devices),
            fails,
            nested,
            threads=threads,
            shares=shares,
        )


def _replicas(key: str, entry: ReplicatedResource) -> int:
    if entry.replicas is None or entry.replicas < 1:
        # NVIDIA's words, for people who search for them.
        raise ConfigError(f"{key}.replicas", entry.replicas, "number of replicas must be >= 1")
    return entry.replicas


def _threads(key: str, entry: ReplicatedResource) -> ThreadRule:
    if not isinstance(entry, LimitedResource) or entry.threads is None:
        return ThreadStrategy.PROPORTIONAL
    return parse_threads(f"{key}.threads", str(entry.threads))


def _nested(
    field: str,
    value: str | bool | None,  # noqa: FBT001 (the type of the key)
) -> bool | None:
    """`host`, `off` or a boolean. None if the node's own setting applies."""
    if value is None or isinstance(value, bool):
        return value
    if value == Nested.GUEST.value:
        raise ConfigError(
            field, value, "a node is a guest as a whole: set flags.nested; use host or off here"
        )
    if value not in (Nested.HOST.value, Nested.OFF.value):
        raise ConfigError(field, value, "choose one of host, off")
    return value == Nested.HOST.value


def _check_names(time_slicing: tuple[ReplicaRule, ...], mps: tuple[ReplicaRule, ...]) -> None:
    both = _names(time_slicing) & _names(mps)
    if both:
        raise ConfigError(
            "sharing.mps",
            sorted(both)[0],
            "sharing.timeSlicing uses the same resource name; set rename for one of them",
        )


def _names(rules: tuple[ReplicaRule, ...]) -> set[str]:
    return {name for rule in rules for name in rule.resources}


def _check_devices(rules: tuple[ReplicaRule, ...]) -> None:
    """Reject conflicts that are visible without the devices of the node."""
    by_name: dict[str, list[ReplicaRule]] = {}
    for rule in rules:
        by_name.setdefault(rule.name, []).append(rule)
    for name, same_name in by_name.items():
        if len(same_name) > 1:
            _check_devices_of(name, same_name)


def _check_devices_of(name: str, rules: list[ReplicaRule]) -> None:
    """`rules` are for devices of this name."""
    if any(rule.devices.everything for rule in rules):
        raise ConfigError(
            "sharing",
            name,
            "two rules select the same devices, and one of them selects all; "
            "list devices in each rule",
        )
    used: set[str] = set()
    for rule in rules:
        # A rule lists each device once.
        for reference in rule.devices.references:
            if reference in used:
                raise ConfigError(
                    "sharing",
                    reference,
                    f"two rules for {name} use this device; list it in one of them only",
                )
        used.update(rule.devices.references)


def _labels(gfd: GfdFlags, *, use_node_feature_api: bool | None) -> LabelSettings:
    default = LabelSettings()
    interval = default.sleep_seconds
    if gfd.sleep_interval is not None:
        interval = parse_interval("flags.gfd.sleepInterval", gfd.sleep_interval)
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
