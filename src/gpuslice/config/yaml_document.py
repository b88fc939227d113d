"""Reads YAML or JSON, without the surprises of YAML 1.1 and with an error for duplicate keys."""

from __future__ import annotations

import json
import re
from collections.abc import Hashable
from pathlib import Path

import yaml

from gpuslice.config.errors import ConfigError


def read_document(path: Path) -> object:
    """An empty file is an empty document."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("config-file", str(path), f"cannot read the file: {error}") from error
    try:
        document = _parse(text)
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
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)


def _unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"duplicate key {key!r}")
        result[key] = value
    return result


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The types of YAML 1.1, but 1:0 is a MIG device and not 60, and a date is a string."""
    int_tag, time_tag = "tag:yaml.org,2002:int", "tag:yaml.org,2002:timestamp"
    float_tag = "tag:yaml.org,2002:float"
    plain = {
        int_tag: re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z"),
        float_tag: re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z"),
    }
    return {
        first: [(tag, plain.get(tag, pattern)) for tag, pattern in entries if tag != time_tag]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys: PyYAML would silently use the last one."""

    yaml_implicit_resolvers = _resolvers()

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001 (PyYAML's signature)
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise ValueError(f"duplicate key {key_node.value!r} in line {line}")
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)
