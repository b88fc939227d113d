"""Reads YAML or JSON of bounded size, with an error for duplicate keys."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from gpuslice.config.config_choice import MOST_BYTES, read_config_bytes
from gpuslice.config.document_limits import check_document
from gpuslice.config.errors import ConfigError
from gpuslice.config.yaml_loader import load_yaml


def read_document(path: Path) -> object:
    """An empty file is an empty document."""
    content = read_config_bytes(path)
    if len(content) > MOST_BYTES:
        raise ConfigError(
            "config-file", str(path), f"it has more than {MOST_BYTES} bytes; use a smaller file"
        )
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError("config-file", str(path), f"cannot read the file: {error}") from error
    try:
        document = _parse(text)
        check_document(document)
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ConfigError("config-file", str(path), f"it is not valid YAML: {error}") from error
    return {} if document is None else document


def _parse(text: str) -> object:
    if text.lstrip().startswith("{"):
        # JSON may be indented with tabs, which YAML does not allow.
        try:
            return json.loads(text, object_pairs_hook=_unique_keys)
        except json.JSONDecodeError:
            pass
    return load_yaml(text)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key[:60]!r}")
        result[key] = value
    return result
