"""The schema of the configuration file: NVIDIA's v1 layout and gpuslice's own keys."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import field

from gpuslice.config.errors import ConfigError
from gpuslice.config.type_errors import type_error
from gpuslice.config.unknown_keys import remove_unknown_keys
from gpuslice.config.yaml_document import read_document


class _Section(msgspec.Struct, frozen=True, rename="camel"):
    """A missing key is None, so that the default of the entry point applies."""


class PluginFlags(_Section, frozen=True):
    pass_device_specs: bool | None = None
    device_list_strategy: str | tuple[str, ...] | None = None
    device_id_strategy: str | None = field(name="deviceIDStrategy", default=None)
    cdi_annotation_prefix: str | None = None
    nvidia_ctk_path: str | None = field(name="nvidiaCTKPath", default=None)
    container_driver_root: str | None = None
    shared_devices_allocation_policy: str | None = None


class GfdFlags(_Section, frozen=True):
    oneshot: bool | None = None
    no_timestamp: bool | None = None
    sleep_interval: str | int | float | None = None
    output_file: str | None = None
    machine_type_file: str | None = None


class Flags(_Section, frozen=True):
    mig_strategy: str | None = None
    fail_on_init_error: bool | None = None
    mps_root: str | None = None
    nvidia_driver_root: str | None = None
    nvidia_dev_root: str | None = None
    gdrcopy_enabled: bool | None = None
    gds_enabled: bool | None = None
    mofed_enabled: bool | None = None
    use_node_feature_api: bool | None = field(name="useNodeFeatureAPI", default=None)
    device_discovery_strategy: str | None = None
    bind: str | None = None
    # YAML reads a bare `off` as false.
    memory_limits: str | bool | None = None
    cgroup_root: str | None = None
    # YAML reads a bare `off` as false.
    thread_annotations: str | bool | None = None
    # YAML reads a bare `off` as false.
    nested: str | bool | None = None
    nested_env: str | None = None
    nested_file: str | None = None
    nested_dir: str | None = None
    plugin: PluginFlags = PluginFlags()
    gfd: GfdFlags = GfdFlags()


class NamedDevices(_Section, frozen=True):
    pattern: str | None = None
    name: str | None = None
    # YAML reads a bare `off` as false.
    nested: str | bool | None = None


class Resources(_Section, frozen=True):
    gpus: tuple[NamedDevices, ...] = ()
    mig: tuple[NamedDevices, ...] = ()


class Mps(_Section, frozen=True):
    mode: str | None = None
    pipe_directory: str | None = None
    # YAML reads a bare `off` as false.
    check: str | bool | None = None
    shm: str | None = None
    namespaces: str | bool | None = None


class MemorySharing(_Section, frozen=True):
    resource: str | None = None
    devices: str | int | tuple[str | int, ...] | None = None
    # A number without a unit is rejected later, with an error that lists the units.
    unit: str | int | float | None = None
    reserve: str | int | float | None = None
    # A number without a unit is rejected later, with an error that names the units.
    threads: str | int | float | None = None
    advertise: str | None = None
    ids: str | None = None
    mps: Mps = Mps()


class ReplicatedResource(_Section, frozen=True):
    name: str | None = None
    rename: str | None = None
    devices: str | int | tuple[str | int, ...] = "all"
    replicas: int | None = None
    nested: str | bool | None = None


class ReplicatedResources(_Section, frozen=True):
    rename_by_default: bool = False
    fail_requests_greater_than_one: bool | None = None
    resources: tuple[ReplicatedResource, ...] = ()


class NamedShareEntry(_Section, frozen=True):
    name: str | None = None
    threads: str | int | float | None = None
    memory: str | int | float | None = None
    count: int = 1


class LimitedResource(ReplicatedResource, frozen=True):
    threads: str | int | float | None = None
    shares: tuple[NamedShareEntry, ...] | None = None


class LimitedResources(ReplicatedResources, frozen=True):
    resources: tuple[LimitedResource, ...] = ()
    reserve: str | int | float | None = None
    advertise: str | None = None
    daemon_limits: str | None = None
    overcommit: str | None = None


class Sharing(_Section, frozen=True):
    memory: MemorySharing | None = None
    time_slicing: ReplicatedResources | None = None
    mps: LimitedResources | None = None


class Imex(_Section, frozen=True):
    channel_ids: tuple[int, ...] | None = field(name="channelIDs", default=None)
    required: bool | None = None


class Health(_Section, frozen=True):
    enabled: bool | None = None


class MpsContainers(_Section, frozen=True):
    hide_privileged_socket: bool | None = None
    pipe_read_only: bool | None = None


class Watchdog(_Section, frozen=True):
    # YAML reads a bare `off` as false.
    mode: str | bool | None = None
    # A number without a unit is rejected later, with an error that lists the units.
    grace: str | int | float | None = None
    slack: str | int | float | None = None
    container_logs: str | None = None


class ConfigFile(_Section, frozen=True):
    version: str | int | float = "v1"
    flags: Flags = Flags()
    resources: Resources = Resources()
    sharing: Sharing = Sharing()
    imex: Imex = Imex()
    health: Health = Health()
    mps: MpsContainers = MpsContainers()
    watchdog: Watchdog = Watchdog()


def read_config_file(path: Path, *, lenient: bool = False) -> tuple[ConfigFile, tuple[str, ...]]:
    """The file, and a warning for each unknown key, which is an error unless `lenient`."""
    document, unknown = remove_unknown_keys(read_document(path), ConfigFile)
    if unknown and not lenient:
        raise ConfigError("config-file", str(path), "; ".join(unknown))
    try:
        file = msgspec.convert(document, ConfigFile)
    except msgspec.ValidationError as error:
        raise type_error(error, document, ConfigFile, path) from error
    if file.version not in ("", "v1"):
        raise ConfigError("version", file.version, "unknown version; use v1")
    return file, unknown


def is_file_key(field: str) -> bool:
    """Whether this is a key of the file, for example `sharing.mps.resources[0].name`."""
    top = re.split(r"[.\[]", field, maxsplit=1)[0]
    return any(top == section.encode_name for section in msgspec.structs.fields(ConfigFile))
