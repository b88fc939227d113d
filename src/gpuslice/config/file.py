"""The configuration file: NVIDIA's v1 layout with gpuslice's `sharing.memory`."""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Literal

import msgspec
import yaml

from gpuslice.config.errors import ConfigError


class _Section(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename="camel"):
    """Strict: a misspelt key is an error, not a default."""


class Flags(_Section, frozen=True):
    fail_on_init_error: bool | None = None


class Mps(_Section, frozen=True):
    pipe_directory: str | None = None
    # YAML reads a bare `off` as false.
    check: Literal["require", "auto", "off"] | bool | None = None


class MemorySharing(_Section, frozen=True):
    resource: str | None = None
    unit: str | None = None
    reserve: str | Literal[0] | None = None
    threads: Literal["proportional", "none"] | None = None
    mps: Mps = Mps()


class Sharing(_Section, frozen=True):
    memory: MemorySharing = MemorySharing()


class Health(_Section, frozen=True):
    enabled: bool | None = None


class ConfigFile(_Section, frozen=True):
    version: Literal["v1"] = "v1"
    flags: Flags = Flags()
    sharing: Sharing = Sharing()
    health: Health = Health()


def read_config_file(path: Path) -> ConfigFile:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config-file", str(path), f"it cannot be read ({error})") from error
    try:
        document = _without_empty_sections(yaml.safe_load(text))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("config-file", str(path), f"it is not YAML: {error}") from error
    try:
        return msgspec.convert(document, ConfigFile)
    except msgspec.ValidationError as error:
        raise ConfigError("config-file", str(path), _explain(str(error))) from error


def _without_empty_sections(document: object) -> object:
    """A section without any key (`sharing:`) says nothing, as does an empty file."""
    if document is None:
        return {}
    if isinstance(document, dict):
        return {k: _without_empty_sections(v) for k, v in document.items() if v is not None}
    return document


def _explain(message: str) -> str:
    """msgspec's message, with the nearest key where one was misspelt."""
    unknown = re.search(r"unknown field `([^`]+)`", message)
    if unknown is None:
        return message
    near = difflib.get_close_matches(unknown[1], all_keys(ConfigFile), n=1)
    return f"{message}; did you mean `{near[0]}`?" if near else f"{message}; remove it"


def all_keys(section: type[msgspec.Struct]) -> list[str]:
    keys: list[str] = []
    for field in msgspec.structs.fields(section):
        keys.append(field.encode_name)
        if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct):
            keys += all_keys(field.type)
    return keys
