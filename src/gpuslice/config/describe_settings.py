"""Renders settings in the layout of the configuration file, for the log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from gpuslice.slicing.rules import NameRule, ReplicaRule, Selection, SharingStrategy
from gpuslice.slicing.threads import ThreadRule, ThreadStrategy
from gpuslice.slicing.units import describe_mib

if TYPE_CHECKING:
    from gpuslice.config.settings import LabelSettings, Settings
    from gpuslice.config.watchdog_settings import WatchdogSettings

_NANOSECONDS = 1_000_000_000


def describe_settings(settings: Settings) -> dict[str, object]:
    """A valid file, except for the section `agent`: its settings have no key in the file."""
    containers = settings.containers
    return {
        "version": "v1",
        "flags": _flags(settings),
        "resources": {
            "gpus": [_name_rule(rule) for rule in settings.rules.gpus],
            **_if_set("mig", [_name_rule(rule) for rule in settings.rules.mig or ()]),
        },
        "sharing": _sharing(settings),
        "imex": {
            "channelIDs": list(containers.imex_channels),
            "required": containers.imex_required,
        },
        "health": {"enabled": settings.health.enabled},
        "mps": {
            "hidePrivilegedSocket": containers.mps_hide_privileged_socket,
            "pipeReadOnly": containers.mps_pipe_read_only,
        },
        "watchdog": _watchdog(settings.watchdog),
        "agent": _agent(settings),
    }


def _flags(settings: Settings) -> dict[str, object]:
    containers = settings.containers
    return {
        "migStrategy": settings.rules.mig_strategy.value,
        "failOnInitError": settings.fail_on_init_error,
        **_if_set("mpsRoot", containers.mps_root),
        "nvidiaDriverRoot": containers.driver_root,
        "nvidiaDevRoot": containers.dev_root,
        "gdrcopyEnabled": containers.gdrcopy,
        "gdsEnabled": containers.gds,
        "mofedEnabled": containers.mofed,
        "useNodeFeatureAPI": settings.labels.use_node_feature_api,
        "deviceDiscoveryStrategy": settings.discovery.value,
        "bind": settings.bind.value,
        "threadAnnotations": settings.thread_annotations.value,
        "memoryLimits": settings.memory_limits.mode.value,
        "cgroupRoot": settings.memory_limits.cgroup_root,
        "nested": settings.nested.value,
        **_if_set("nestedEnv", settings.nested_env),
        "nestedFile": settings.nested_file or "none",
        "nestedDir": settings.nested_directory,
        "plugin": {
            "passDeviceSpecs": containers.pass_device_specs,
            "deviceListStrategy": sorted(member.value for member in containers.device_list),
            "deviceIDStrategy": containers.device_id.value,
            "cdiAnnotationPrefix": containers.cdi_annotation_prefix,
            "nvidiaCTKPath": settings.cdi.hook_path,
            "containerDriverRoot": settings.cdi.container_driver_root,
            "sharedDevicesAllocationPolicy": settings.policy.value,
        },
        "gfd": _gfd(settings.labels),
    }


def _gfd(labels: LabelSettings) -> dict[str, object]:
    return {
        "oneshot": labels.oneshot,
        "noTimestamp": labels.no_timestamp,
        "sleepInterval": _interval(labels.sleep_seconds),
        "outputFile": labels.output_file,
        "machineTypeFile": labels.machine_type_file,
    }


def _watchdog(watchdog: WatchdogSettings) -> dict[str, object]:
    return {
        "mode": watchdog.mode.value,
        "grace": _interval(watchdog.grace_seconds),
        "slack": _size(watchdog.slack_mib),
        "containerLogs": watchdog.container_logs,
    }


def _interval(seconds: float | None) -> str:
    if seconds is None:
        return "infinite"
    return f"{int(seconds)}s" if seconds == int(seconds) else f"{round(seconds * _NANOSECONDS)}ns"


def _sharing(settings: Settings) -> dict[str, object]:
    replicas = settings.rules.replicas
    return {
        "memory": _memory(settings),
        **_if_set("timeSlicing", _replicas(replicas, SharingStrategy.TIME_SLICING)),
        **_if_set("mps", _replicas(replicas, SharingStrategy.MPS)),
    }


def _memory(settings: Settings) -> dict[str, object]:
    memory, mps = settings.rules.memory, settings.memory_mps
    if memory is None:
        return {"devices": "none"}
    return {
        "resource": memory.resource,
        "devices": _selection(memory.devices),
        "unit": str(memory.unit),
        "reserve": "auto" if memory.reserve_mib is None else _size(memory.reserve_mib),
        "threads": _threads(memory.threads),
        "advertise": memory.advertise.value,
        "ids": memory.ids.value,
        "mps": {
            "mode": mps.mode.value,
            **_if_set("pipeDirectory", mps.pipe),
            "check": mps.check.value,
            **_if_set("shm", mps.shm),
            "namespaces": mps.namespaces.value,
        },
    }


def _replicas(rules: Sequence[ReplicaRule], strategy: SharingStrategy) -> dict[str, object]:
    chosen = [rule for rule in rules if rule.strategy is strategy]
    if not chosen:
        return {}
    return {
        "failRequestsGreaterThanOne": chosen[0].fail_requests_greater_than_one,
        **(_limited_section(chosen[0]) if strategy is SharingStrategy.MPS else {}),
        "resources": [
            {
                "name": rule.name,
                **_if_set("rename", rule.rename),
                "devices": _selection(rule.devices),
                **({} if rule.shares else {"replicas": rule.replicas}),
                **(_limited_entry(rule) if strategy is SharingStrategy.MPS else {}),
                **_nested_key(rule),
            }
            for rule in chosen
        ],
    }


def _limited_section(rule: ReplicaRule) -> dict[str, object]:
    return {
        **_if_set("reserve", rule.reserve_mib and _size(rule.reserve_mib)),
        "advertise": rule.advertise.value,
        **_if_set("daemonLimits", rule.daemon_limits and rule.daemon_limits.value),
        "overcommit": rule.overcommit.value,
    }


def _limited_entry(rule: ReplicaRule) -> dict[str, object]:
    shares = [
        {
            "name": share.name,
            "memory": _size(share.memory_mib),
            "threads": _threads(share.threads),
            "count": share.count,
        }
        for share in rule.shares
    ]
    return {"threads": _threads(rule.threads), **_if_set("shares", shares)}


def _name_rule(rule: NameRule) -> dict[str, object]:
    return {"pattern": rule.pattern, "name": rule.name, **_nested_key(rule)}


def _nested_key(rule: NameRule | ReplicaRule) -> dict[str, object]:
    return {} if rule.nested is None else {"nested": "host" if rule.nested else "off"}


def _threads(rule: ThreadRule) -> str:
    return rule.value if isinstance(rule, ThreadStrategy) else str(rule)


def _size(mib: int) -> str:
    return describe_mib(mib).replace(" ", "")


def _selection(selection: Selection) -> object:
    if selection.everything:
        return "all"
    return list(selection.references) if selection.count is None else selection.count


def _agent(settings: Settings) -> dict[str, object]:
    health, cdi = settings.health, settings.cdi
    return {
        "kubeletSocket": settings.kubelet_socket,
        "cdiFeatureFlags": sorted(cdi.feature_flags),
        "cdiDisableHooks": sorted(cdi.disabled_hooks),
        "cdiDirectory": cdi.directory,
        "cdiRemoveOnExit": cdi.remove_on_exit,
        "ignoredXids": "all" if health.ignore_all else sorted(health.ignored),
        "fatalXids": "all" if health.fatal is None else sorted(health.fatal),
        **_if_set("nestedDevices", settings.nested_devices),
    }


def _if_set(key: str, value: object) -> dict[str, object]:
    return {key: value} if value else {}
