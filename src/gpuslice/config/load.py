"""Flag, then environment, then file, then default: the first that speaks wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from gpuslice.config.config_choice import check_config_file
from gpuslice.config.errors import ConfigError
from gpuslice.config.file_sections import FileSections
from gpuslice.config.health_options import health_settings
from gpuslice.config.option_table import OPTIONS
from gpuslice.config.option_values import OptionReader, OptionValue, OptionValues
from gpuslice.config.settings import (
    NESTED_ENV,
    CdiSettings,
    ContainerSettings,
    DeviceList,
    MemoryMps,
    Nested,
    Settings,
)
from gpuslice.config.value_parsers import memory_reserve, memory_selection, memory_unit
from gpuslice.slicing.rules import ALL, DEFAULT_NAME, MemoryRule, NameRule, Rules

# Whoever names one of these wants memory to be cut.
_MEMORY_WISHES = (
    "resource", "memory-devices", "memory-unit", "memory-reserve", "threads", "mps-pipe",
)  # fmt: skip
_CDI_FEATURES = frozenset({
    "enable-explicit-driver-libraries", "disable-nvsandboxutils", "enable-coherent-annotations",
    "disable-multiple-csv-devices", "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
})  # fmt: skip
_CDI_HOOKS = frozenset({
    "all", "chmod", "create-symlinks", "disable-device-node-modification", "enable-cuda-compat",
    "update-application-profile", "update-ldcache",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Loaded:
    settings: Settings
    # What an operator should hear of, in sentences.
    warnings: tuple[str, ...] = ()


def load_settings(
    given: OptionValues, defaults: Settings | None = None, config_file: Path | None = None
) -> Loaded:
    """Reads and checks everything anew; raises ConfigError and changes nothing if it is wrong.

    `config_file` is the file to read now; None stands for an empty one.
    """
    base = defaults or Settings()
    in_file, rules, warnings = _read(
        config_file, lenient=OptionReader(given).switch("lenient", False)
    )
    said = OptionReader({**in_file, **given})
    nested = said.choice("nested", base.nested)
    health, odd_xids = health_settings(
        said.said("disabled-xids"),
        said.said("enabled-xids"),
        watch=said.switch("health-checks", base.health.enabled),
    )
    mps = _memory_mps(said, base.memory_mps)
    memory = _memory(said, given, rules, base.rules.memory, limited=mps.pipe is not None)
    settings = replace(
        base,
        rules=_rules(said, rules, base.rules, memory=memory, nested=nested),
        memory_mps=mps,
        containers=_containers(said, base.containers),
        cdi=_cdi(said, base.cdi),
        health=health,
        policy=said.choice("shared-devices-allocation-policy", base.policy),
        discovery=said.choice("device-discovery-strategy", base.discovery),
        fail_on_init_error=said.switch("fail-on-init-error", base.fail_on_init_error),
        kubelet_socket=said.text("kubelet-socket", base.kubelet_socket),
        nested_env=said.text("nested-env", NESTED_ENV) if nested is Nested.GUEST else None,
        nested_devices=said.text("nested-devices", "") or None if nested is Nested.GUEST else None,
        nested_directory=said.text("nested-dir", base.nested_directory),
        labels=rules.labels,
    )
    return Loaded(settings, (*warnings, *odd_xids, *_oddities(said, settings)))


def _read(
    path: Path | None, *, lenient: bool
) -> tuple[dict[str, OptionValue], FileSections, tuple[str, ...]]:
    if path is None:
        return {}, FileSections(), ()
    check_config_file(path)
    # Imported here: an agent without a file does without the YAML parser's memory.
    from gpuslice.config.file_flags import file_texts
    from gpuslice.config.file_parser import file_rules
    from gpuslice.config.file_schema import read_config_file

    file, unknown = read_config_file(path, lenient=lenient)
    return file_texts(file, OPTIONS), file_rules(file), unknown


def _memory(
    said: OptionReader,
    given: OptionValues,
    file: FileSections,
    default: MemoryRule | None,
    *,
    limited: bool,
) -> MemoryRule | None:
    """None: no memory is sliced."""
    base = default or MemoryRule()
    wished = file.memory or any(name in given and given[name].text for name in _MEMORY_WISHES)
    if not wished and (file.offers_devices or default is None):
        return None
    devices = said.said("memory-devices")
    selected = ALL if devices is None else memory_selection(devices)
    if selected is None:
        return None
    unit, reserve = said.said("memory-unit"), said.said("memory-reserve")
    return MemoryRule(
        devices=selected if wished else base.devices,
        resource=said.text("resource", base.resource),
        unit=base.unit if unit is None else memory_unit(unit),
        reserve_mib=base.reserve_mib if reserve is None else memory_reserve(reserve),
        threads=said.choice("threads", base.threads),
        limited=limited,
    )


def _rules(
    said: OptionReader,
    file: FileSections,
    base: Rules,
    *,
    memory: MemoryRule | None,
    nested: Nested,
) -> Rules:
    default = NameRule("*", DEFAULT_NAME)
    return replace(
        base,
        mig_strategy=said.choice("mig-strategy", base.mig_strategy),
        gpus=file.gpus if file.gpus[-1:] == (default,) else (*file.gpus, default),
        mig=file.mig or None,
        replicas=file.replicas,
        memory=memory,
        nested=nested is Nested.HOST,
    )


def _memory_mps(said: OptionReader, base: MemoryMps) -> MemoryMps:
    return MemoryMps(
        # An empty directory name is how a flag turns off the MPS of the file.
        pipe=said.text("mps-pipe", base.pipe or "") or None,
        check=said.choice("mps-check", base.check),
    )


def _containers(said: OptionReader, base: ContainerSettings) -> ContainerSettings:
    strategies = said.choices("device-list-strategy", DeviceList)
    driver_root = said.text("driver-root", base.driver_root) or "/"
    return ContainerSettings(
        device_list=base.device_list if strategies is None else frozenset(strategies),
        device_id=said.choice("device-id-strategy", base.device_id),
        pass_device_specs=said.switch("pass-device-specs", base.pass_device_specs),
        gdrcopy=said.switch("gdrcopy-enabled", base.gdrcopy),
        gds=said.switch("gds-enabled", base.gds),
        mofed=said.switch("mofed-enabled", base.mofed),
        imex_channels=_imex_channels(said, base.imex_channels),
        imex_required=said.switch("imex-required", base.imex_required),
        mps_root=said.text("mps-root", base.mps_root or "") or None,
        driver_root=driver_root,
        dev_root=said.text("dev-root", "") or driver_root,
        cdi_annotation_prefix=said.text("cdi-annotation-prefix", base.cdi_annotation_prefix),
    )


def _imex_channels(said: OptionReader, default: tuple[int, ...]) -> tuple[int, ...]:
    listed = said.listed("imex-channel-ids")
    if listed is None:
        return default
    if listed not in ((), ("0",)):
        source = said.said("imex-channel-ids")
        field = source.source if source else "imex-channel-ids"
        raise ConfigError(field, ",".join(listed), "use 0, or none at all")
    return tuple(map(int, listed))


def _cdi(said: OptionReader, base: CdiSettings) -> CdiSettings:
    features, hooks = said.listed("cdi-feature-flags"), said.listed("cdi-disable-hooks")
    return CdiSettings(
        hook_path=said.text("nvidia-cdi-hook-path", base.hook_path),
        container_driver_root=said.text("driver-root-ctr-path", base.container_driver_root),
        feature_flags=base.feature_flags if features is None else frozenset(features),
        disabled_hooks=base.disabled_hooks if hooks is None else frozenset(hooks),
        directory=said.text("cdi-directory", base.directory),
        remove_on_exit=said.switch("cdi-remove-on-exit", base.remove_on_exit),
    )


def _oddities(said: OptionReader, settings: Settings) -> tuple[str, ...]:
    """What is valid and yet hardly meant."""
    odd = [
        f"cdi-feature-flags: {name!r} is not known"
        for name in sorted(settings.cdi.feature_flags - _CDI_FEATURES)
    ]
    odd += [
        f"cdi-disable-hooks: {name!r} is not known"
        for name in sorted(settings.cdi.disabled_hooks - _CDI_HOOKS)
    ]
    memory = settings.rules.memory
    if memory is not None and memory.devices.everything and settings.rules.replicas:
        odd.append(
            "sharing.memory takes every GPU that is not in MIG mode, so that replicas are left "
            "with MIG alone; name its devices (memory-devices)"
        )
    if memory is None and "mps-pipe" in said and said.text("mps-pipe", ""):
        odd.append("mps-pipe has no effect: no memory is cut into units (memory-devices)")
    if memory is not None and settings.nested is Nested.HOST:
        odd.append(
            f"nested: host does not concern memory units ({memory.resource}): their "
            "containers are told nothing of a nested node. Give such nodes GPUs, MIG devices or "
            "replicas, and leave GPUs for them (memory-devices)"
        )
    if "nested-env" in said and settings.nested is not Nested.GUEST:
        odd.append("nested-env has no effect: nested is not guest")
    return tuple(odd)
