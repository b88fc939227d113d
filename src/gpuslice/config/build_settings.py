"""Option values and the content of the file -> settings."""

from __future__ import annotations

from dataclasses import replace

from gpuslice.config.errors import ConfigError
from gpuslice.config.file_content import FileContent
from gpuslice.config.memory_limit_settings import MemoryLimitSettings
from gpuslice.config.option_values import OptionReader
from gpuslice.config.settings import (
    HOST_SHM,
    NESTED_ENV,
    NESTED_MOUNT,
    CdiSettings,
    ContainerSettings,
    DeviceList,
    HealthSettings,
    MemoryMps,
    MpsMode,
    Nested,
    Settings,
)
from gpuslice.config.validation import check_imex_channels, check_resource_name
from gpuslice.config.value_parsers import (
    parse_grace,
    parse_memory_reserve,
    parse_memory_selection,
    parse_memory_unit,
    parse_threads,
    parse_unit_reserve,
)
from gpuslice.config.watchdog_settings import WatchdogSettings
from gpuslice.config.xid_list import parse_xid_list
from gpuslice.slicing.rules import ALL, DEFAULT_NAME, MemoryRule, NameRule, Rules, Selection

# Any of these turns memory units on.
_MEMORY_OPTIONS = (
    "resource", "memory-devices", "memory-unit", "memory-reserve", "memory-advertise",
    "memory-ids", "threads", "mps-mode", "mps-pipe",
)  # fmt: skip


def build_settings(options: OptionReader, file: FileContent, base: Settings) -> Settings:
    """`base` has the values of options that are not set. Raises ConfigError."""
    nested = options.choice("nested", base.nested)
    is_guest = nested is Nested.GUEST
    memory_mps = _memory_mps(options, base.memory_mps)
    memory = _memory(options, file, base.rules.memory, memory_mps)
    return replace(
        base,
        rules=_rules(options, file, base.rules, memory, nested),
        memory_mps=memory_mps,
        containers=_containers(options, base.containers),
        cdi=_cdi(options, base.cdi),
        bind=options.choice("bind", base.bind),
        thread_annotations=options.choice("thread-annotations", base.thread_annotations),
        health=_health(options, base.health),
        policy=options.choice("shared-devices-allocation-policy", base.policy),
        discovery=options.choice("device-discovery-strategy", base.discovery),
        fail_on_init_error=options.switch("fail-on-init-error", base.fail_on_init_error),
        kubelet_socket=options.text("kubelet-socket", base.kubelet_socket),
        nested_env=options.text("nested-env", NESTED_ENV) if is_guest else None,
        nested_devices=options.text("nested-devices", "") or None if is_guest else None,
        nested_directory=options.text("nested-dir", base.nested_directory),
        nested_file=_nested_file(options, base.nested_file),
        labels=file.labels,
        watchdog=_watchdog(options, base.watchdog),
        memory_limits=MemoryLimitSettings(
            mode=options.choice("memory-limits", base.memory_limits.mode),
            cgroup_root=options.text("cgroup-root", base.memory_limits.cgroup_root),
        ),
    )


def _nested_file(options: OptionReader, default: str | None) -> str | None:
    text = options.text("nested-file", "")
    if not text:
        return default
    return {"mount": NESTED_MOUNT, "none": None}.get(text, text)


def _rules(
    options: OptionReader,
    file: FileContent,
    base: Rules,
    memory: MemoryRule | None,
    nested: Nested,
) -> Rules:
    default = NameRule("*", DEFAULT_NAME)
    return replace(
        base,
        mig_strategy=options.choice("mig-strategy", base.mig_strategy),
        gpus=file.gpus if file.gpus[-1:] == (default,) else (*file.gpus, default),
        mig=file.mig or None,
        replicas=file.replicas,
        memory=memory,
        nested=nested is Nested.HOST,
    )


def _memory(
    options: OptionReader, file: FileContent, default: MemoryRule | None, mps: MemoryMps
) -> MemoryRule | None:
    """None: memory units are off. Their options are validated all the same."""
    wanted = file.has_memory or any(options.text(name, "") for name in _MEMORY_OPTIONS)
    base = default or MemoryRule()
    devices = options.get("memory-devices")
    selection: Selection | None = ALL if wanted else base.devices
    if devices is not None:
        selection = parse_memory_selection(devices.source, devices.text)
    resource = options.text("resource", base.resource)
    check_resource_name("resource", resource)
    unit, reserve = options.get("memory-unit"), options.get("memory-reserve")
    threads = options.get("threads")
    rule = MemoryRule(
        devices=selection or ALL,
        resource=resource,
        unit=base.unit if unit is None else parse_memory_unit(unit.source, unit.text),
        reserve_mib=(
            base.reserve_mib
            if reserve is None
            else parse_unit_reserve(reserve.source, reserve.text)
        ),
        threads=base.threads if threads is None else parse_threads(threads.source, threads.text),
        ids=options.choice("memory-ids", base.ids),
        advertise=options.choice("memory-advertise", base.advertise),
        limited=mps.mode is not MpsMode.NONE,
        daemon_per_gpu=mps.is_managed,
    )
    by_default = default is not None and not file.advertises_devices
    return rule if selection is not None and (wanted or by_default) else None


def _memory_mps(options: OptionReader, base: MemoryMps) -> MemoryMps:
    # An empty flag turns off MPS that the file turns on.
    pipe = options.text("mps-pipe", base.pipe or "") or None
    mode = options.choice("mps-mode", MpsMode.NONE if pipe is None else MpsMode.EXTERNAL)
    if mode is MpsMode.EXTERNAL and pipe is None:
        raise ConfigError(
            "mps-mode",
            mode.value,
            "set mps-pipe to the pipe directory of the MPS control daemon that runs on the node, "
            "or use managed",
        )
    shm = options.text("mps-shm", base.shm or "") or None
    return MemoryMps(
        pipe=pipe if mode is MpsMode.EXTERNAL else None,
        check=options.choice("mps-check", base.check),
        shm=HOST_SHM if shm == "host" else shm,
        is_managed=mode is MpsMode.MANAGED,
        namespaces=options.choice("mps-namespaces", base.namespaces),
    )


def _containers(options: OptionReader, base: ContainerSettings) -> ContainerSettings:
    strategies = options.choices("device-list-strategy", DeviceList)
    driver_root = options.text("driver-root", base.driver_root) or "/"
    return ContainerSettings(
        device_list=base.device_list if strategies is None else frozenset(strategies),
        device_id=options.choice("device-id-strategy", base.device_id),
        pass_device_specs=options.switch("pass-device-specs", base.pass_device_specs),
        gdrcopy=options.switch("gdrcopy-enabled", base.gdrcopy),
        gds=options.switch("gds-enabled", base.gds),
        mofed=options.switch("mofed-enabled", base.mofed),
        imex_channels=_imex_channels(options, base.imex_channels),
        imex_required=options.switch("imex-required", base.imex_required),
        mps_root=options.text("mps-root", base.mps_root or "") or None,
        mps_hide_privileged_socket=options.switch(
            "mps-hide-privileged-socket", base.mps_hide_privileged_socket
        ),
        mps_pipe_read_only=options.switch("mps-pipe-read-only", base.mps_pipe_read_only),
        driver_root=driver_root,
        dev_root=options.text("dev-root", "") or driver_root,
        cdi_annotation_prefix=options.text("cdi-annotation-prefix", base.cdi_annotation_prefix),
    )


def _imex_channels(options: OptionReader, default: tuple[int, ...]) -> tuple[int, ...]:
    channels = options.text_list("imex-channel-ids")
    if channels is None:
        return default
    check_imex_channels("imex-channel-ids", channels)
    return tuple(map(int, channels))


def _cdi(options: OptionReader, base: CdiSettings) -> CdiSettings:
    features, hooks = options.text_list("cdi-feature-flags"), options.text_list("cdi-disable-hooks")
    return CdiSettings(
        hook_path=options.text("nvidia-cdi-hook-path", base.hook_path),
        container_driver_root=options.text("driver-root-ctr-path", base.container_driver_root),
        feature_flags=base.feature_flags if features is None else frozenset(features),
        disabled_hooks=base.disabled_hooks if hooks is None else frozenset(hooks),
        directory=options.text("cdi-directory", base.directory),
        remove_on_exit=options.switch("cdi-remove-on-exit", base.remove_on_exit),
    )


def _health(options: OptionReader, base: HealthSettings) -> HealthSettings:
    disabled = parse_xid_list(options.get("disabled-xids"))
    enabled = parse_xid_list(options.get("enabled-xids"))
    return HealthSettings(
        enabled=options.switch("health-checks", base.enabled),
        ignored=disabled.xids,
        fatal=None if enabled.every else enabled.xids,
        ignore_all=disabled.every,
    )


def _watchdog(options: OptionReader, base: WatchdogSettings) -> WatchdogSettings:
    grace, slack = options.get("watchdog-grace"), options.get("watchdog-slack")
    return WatchdogSettings(
        mode=options.choice("watchdog-mode", base.mode),
        grace_seconds=(
            base.grace_seconds if grace is None else parse_grace(grace.source, grace.text)
        ),
        slack_mib=(
            base.slack_mib if slack is None else parse_memory_reserve(slack.source, slack.text)
        ),
        container_logs=options.text("container-logs", base.container_logs),
    )
