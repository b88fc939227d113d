"""A YAML loader without the surprises of YAML 1.1, and with limits on size and time."""

from __future__ import annotations

import re
from collections.abc import Hashable

import yaml

from gpuslice.config.document_limits import DEEPEST, LONGEST_TEXT, MOST_VALUES

_TAG = "tag:yaml.org,2002:"
_INT, _FLOAT, _BOOL = f"{_TAG}int", f"{_TAG}float", f"{_TAG}bool"
_MERGE, _TIME = f"{_TAG}merge", f"{_TAG}timestamp"
# Settings need no others. PyYAML's safe loader also makes sets, dates and bytes.
_TAGS = frozenset(
    {_INT, _FLOAT, _BOOL, _MERGE, *(_TAG + kind for kind in ("map", "seq", "str", "null"))}
)
_LONGEST_SHOWN = 60


def load_yaml(text: str) -> object:
    """Raises yaml.YAMLError or ValueError."""
    return yaml.load(text, Loader=_Loader)  # noqa: S506 (a subclass of the safe loader)


def _resolvers() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The types of YAML 1.1, but 1:0 is a MIG device and not 60, and a date is a string."""
    plain = {
        _INT: re.compile(r"[-+]?(0x[0-9a-fA-F_]+|0[0-7_]*|[1-9][0-9_]*)\Z"),
        _FLOAT: re.compile(r"[-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9]+)([eE][-+]?[0-9]+)?\Z"),
    }
    return {
        first: [(tag, plain.get(tag, pattern)) for tag, pattern in entries if tag != _TIME]
        for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }


class _Loader(yaml.SafeLoader):
    """Rejects duplicate keys: PyYAML would silently use the last one.

    Counts values while it reads them, and the values behind an alias each time: a few hundred bytes
    of aliases can stand for billions of values.
    """

    yaml_implicit_resolvers = _resolvers()

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        # Values in the section of a node, by its id. A node that is not complete is missing.
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            return self._alias(parent, index)
        before = self._values
        self._count(1)
        self._depth += 1
        if self._depth > DEEPEST:
            raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is not None:
            _check(node)
            self._sizes[id(node)] = self._values - before
        return node

    def _alias(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        line = self.peek_event().start_mark.line + 1  # type: ignore[no-untyped-call]
        node = super().compose_node(parent, index)
        size = self._sizes.get(id(node))
        if size is None:
            raise ValueError(f"the alias in line {line} refers to a section that contains it")
        self._count(size)
        return node

    def _count(self, values: int) -> None:
        self._values += values
        if self._values > MOST_VALUES:
            raise ValueError(f"it has more than {MOST_VALUES} values; aliases count each time")

    def construct_mapping(
        self,
        node: yaml.MappingNode,
        deep: bool = False,  # noqa: FBT001 (PyYAML's signature)
    ) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key_node, _ in node.value if isinstance(node, yaml.MappingNode) else ():
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != _MERGE:
                if key_node.value in seen:
                    line = key_node.start_mark.line + 1
                    raise ValueError(f"duplicate key {_shown(key_node.value)} in line {line}")
                seen.add(key_node.value)
        return super().construct_mapping(node, deep)

    def construct_plain(self, node: yaml.ScalarNode) -> object:
        """A value with an explicit tag may be anything, for example `!!int ""`."""
        try:
            if node.tag == _BOOL:
                return self.construct_yaml_bool(node)
            if node.tag == _INT:
                return self.construct_yaml_int(node)
            return self.construct_yaml_float(node)
        except (ValueError, LookupError) as error:
            kind = node.tag.removeprefix(_TAG)
            line = node.start_mark.line + 1
            raise ValueError(
                f"{_shown(node.value)} in line {line} is not of the type {kind}"
            ) from error


for _tag in (_INT, _FLOAT, _BOOL):
    _Loader.add_constructor(_tag, _Loader.construct_plain)


def _check(node: yaml.Node) -> None:
    line = node.start_mark.line + 1
    if node.tag not in _TAGS:
        raise ValueError(f"the tag {_shown(node.tag)} in line {line} is not supported; remove it")
    if isinstance(node, yaml.ScalarNode) and len(node.value) > LONGEST_TEXT:
        raise ValueError(
            f"the text in line {line} has {len(node.value)} characters; use at most {LONGEST_TEXT}"
        )


def _shown(text: str) -> str:
    return repr(text if len(text) <= _LONGEST_SHOWN else f"{text[:_LONGEST_SHOWN]}…")
