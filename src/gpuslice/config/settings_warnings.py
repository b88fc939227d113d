"""Warnings about settings that are valid but probably not intended."""

from __future__ import annotations

from collections.abc import Iterator

from gpuslice.config.option_values import OptionReader
from gpuslice.config.settings import Bind, MpsMode, Nested, Settings
from gpuslice.config.xid_list import parse_xid_list
from gpuslice.slicing.thread_annotations import ThreadAnnotations

_CDI_FEATURES = frozenset({
    "enable-explicit-driver-libraries", "disable-nvsandboxutils", "enable-coherent-annotations",
    "disable-multiple-csv-devices", "no-additional-gids-for-device-nodes",
    "disable-ipc-discoverer",
})  # fmt: skip
_CDI_HOOKS = frozenset({
    "all", "chmod", "create-symlinks", "disable-device-node-modification", "enable-cuda-compat",
    "update-application-profile", "update-ldcache",
})  # fmt: skip


def settings_warnings(options: OptionReader, settings: Settings) -> tuple[str, ...]:
    return (
        *parse_xid_list(options.get("disabled-xids")).warnings,
        *parse_xid_list(options.get("enabled-xids")).warnings,
        *_cdi_warnings(settings),
        *_memory_warnings(options, settings),
        *_mps_warnings(options, settings),
        *_nested_warnings(options, settings),
        *_bind_warnings(settings),
    )


def _cdi_warnings(settings: Settings) -> Iterator[str]:
    for name in sorted(settings.cdi.feature_flags - _CDI_FEATURES):
        yield f"cdi-feature-flags: {name!r} is unknown"
    for name in sorted(settings.cdi.disabled_hooks - _CDI_HOOKS):
        yield f"cdi-disable-hooks: {name!r} is unknown"


def _memory_warnings(options: OptionReader, settings: Settings) -> Iterator[str]:
    memory = settings.rules.memory
    if memory is None:
        for name in ("mps-mode", "mps-pipe"):
            if options.text(name, ""):
                yield f"{name} has no effect: memory units are off; set memory-devices"
    elif memory.devices.everything and settings.rules.replicas:
        yield (
            "sharing.memory takes every GPU that is not in MIG mode, so that only MIG devices have "
            "replicas; set memory-devices to the GPUs for memory units"
        )


def _mps_warnings(options: OptionReader, settings: Settings) -> Iterator[str]:
    mode = settings.memory_mps.mode
    if settings.rules.memory is None or mode is MpsMode.EXTERNAL:
        return
    for name in ("mps-pipe", "mps-shm"):
        if options.text(name, ""):
            yield f"{name} has no effect: mps-mode is {mode.value}; it is for external"


def _bind_warnings(settings: Settings) -> Iterator[str]:
    if settings.bind is Bind.ENV and settings.thread_annotations is not ThreadAnnotations.OFF:
        yield "thread-annotations has no effect: bind is env; set bind to cdi or auto"


def _nested_warnings(options: OptionReader, settings: Settings) -> Iterator[str]:
    memory = settings.rules.memory
    if memory is not None and settings.nested is Nested.HOST:
        yield (
            f"nested: host does not apply to memory units ({memory.resource}): their "
            "containers get no list of GPUs for a nested node. Use GPUs, MIG devices or replicas "
            "for nested nodes, and set memory-devices so that GPUs are left for them"
        )
    if "nested-env" in options and settings.nested is not Nested.GUEST:
        yield "nested-env has no effect: nested is not guest"
