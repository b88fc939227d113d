"""Parsers for single values. Their errors name the field that was passed in."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from enum import Enum
from typing import TypeVar

from gpuslice.config.errors import ConfigError
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.rules import ALL, Selection
from gpuslice.slicing.threads import ThreadRule, ThreadStrategy, parse_amount
from gpuslice.slicing.units import MemoryUnit, parse_mib

_E = TypeVar("_E", bound=Enum)

# Go's booleans: NVIDIA's programs accept these and no others.
_TRUE = frozenset({"1", "t", "T", "true", "TRUE", "True"})
_FALSE = frozenset({"0", "f", "F", "false", "FALSE", "False"})

_NVIDIA = "nvidia.com/"
_LONGEST_NAME = 63
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_HEX = r"[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_COUNT = re.compile(r"[0-9]{1,18}")
_INDEX = re.compile(r"[0-9]{1,6}(:[0-9]{1,6})?")
_NAMED = re.compile(rf"(?P<kind>GPU-|MIG-)(?P<uuid>{_UUID})|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")


_DURATION_PART = re.compile(r"(?P<count>[0-9]+(\.[0-9]*)?|\.[0-9]+)(?P<unit>ns|us|µs|μs|ms|s|m|h)")
# A shorter interval would be a busy loop.
_SHORTEST_SECONDS = 0.1
_LONGEST_GRACE_SECONDS = 86_400.0
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip

_ADDRESS = re.compile(r"(\[(?P<ipv6>[0-9A-Fa-f:.]+)\]|(?P<host>[^:\s\[\]]*)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65535


def parse_boolean(text: str) -> bool | None:
    """None if the text is neither true nor false."""
    return text in _TRUE if text in _TRUE or text in _FALSE else None


def parse_choice(field: str, text: str, members: Iterable[_E]) -> _E:
    by_name = {str(member.value): member for member in members}
    if text not in by_name:
        raise ConfigError(field, text, f"choose one of {', '.join(by_name)}")
    return by_name[text]


def split_list(text: str) -> tuple[str, ...]:
    """Split at commas, without spaces and empty entries."""
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


def parse_resource_name(field: str, text: str) -> str:
    """Both `gpu` and `nvidia.com/gpu` become `nvidia.com/gpu`."""
    name = text if text.startswith(_NVIDIA) else _NVIDIA + text
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            field,
            text,
            f"{name} has {len(name)} characters: use a name of at most {_LONGEST_NAME}",
        )
    if not _SUBDOMAIN.fullmatch(name.removeprefix(_NVIDIA)):
        raise ConfigError(
            field,
            text,
            "use nvidia.com/ and lower case letters, digits, dots and dashes, "
            "for example nvidia.com/gpu.small",
        )
    return name


def parse_selection(field: str, value: str | int | Sequence[str | int]) -> Selection:
    """`all`, a number of devices, or a list of devices."""
    if value == "all":
        return ALL
    if isinstance(value, str):
        raise ConfigError(field, value, "use all, a number of devices, or a list of devices")
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(field, value, "use at least 1 device, or all")
        return Selection(count=value)
    if not value:
        raise ConfigError(field, [], "name at least one device, or use all")
    references = (_parse_reference(f"{field}[{place}]", item) for place, item in enumerate(value))
    return Selection(references=tuple(dict.fromkeys(references)))


def parse_memory_selection(field: str, text: str) -> Selection | None:
    """A selection as text, for example `0,3`. None for `none`.

    A comma makes a list: `2` is any two GPUs, `2,` is the GPU with the index 2.
    """
    text = text.strip()
    if text == "none":
        return None
    if _COUNT.fullmatch(text):
        selection = parse_selection(field, int(text))
    elif "," in text or _INDEX.fullmatch(text) or _NAMED.fullmatch(text):
        selection = parse_selection(field, split_list(text))
    else:
        selection = parse_selection(field, text)
    for reference in selection.references:
        if ":" in reference or reference.startswith("MIG-"):
            raise ConfigError(
                field,
                text,
                f"{reference} is a MIG device; only whole GPUs can be divided into memory units",
            )
    return selection


def parse_memory_unit(field: str, text: str) -> MemoryUnit:
    try:
        return MemoryUnit.parse(text)
    except SlicingError as error:
        raise ConfigError(field, text, str(error)) from error


def parse_memory_size(field: str, text: str) -> int:
    """In MiB, 1 or more."""
    return parse_memory_unit(field, text).mib


def parse_memory_reserve(field: str, text: str) -> int:
    """A size in MiB. Zero needs no unit."""
    if text.strip() == "0":
        return 0
    try:
        return parse_mib(text)
    except SlicingError as error:
        raise ConfigError(field, text, str(error)) from error


def parse_share_threads(field: str, text: str) -> ThreadRule:
    """As `parse_threads`, without static partitions: a daemon has them for all clients or none."""
    rule = parse_threads(field, text)
    if rule is ThreadStrategy.SM_PARTITION:
        raise ConfigError(
            field, text, "only memory units and replicas can have sm_partition; use 30% or 20 SMs"
        )
    return rule


def parse_unit_reserve(field: str, text: str) -> int | None:
    """A size in MiB; None for `auto`."""
    if text.strip() == "auto":
        return None
    try:
        return parse_memory_reserve(field, text)
    except ConfigError as error:
        raise ConfigError(field, text, f"use auto, or a size: {error.remedy}") from error


def parse_threads(field: str, text: str) -> ThreadRule:
    """A strategy, or an explicit amount: `30%`, `20 SMs`."""
    try:
        amount = parse_amount(text)
    except ValueError as error:
        raise ConfigError(field, text, str(error)) from error
    if amount is not None:
        return amount
    strategies = ", ".join(strategy.value for strategy in ThreadStrategy)
    if text not in {strategy.value for strategy in ThreadStrategy}:
        raise ConfigError(
            field, text, f"choose one of {strategies}, or an amount, for example 30% or 20 SMs"
        )
    return ThreadStrategy(text)


def parse_interval(field: str, value: str | float) -> float | None:
    """Seconds of a Go duration (`1m30s`) or of a number of nanoseconds. None for `infinite`."""
    if value == "infinite":
        return None
    seconds = _parse_go_duration(value) if isinstance(value, str) else value * _SECONDS["ns"]
    if seconds is None or not _SHORTEST_SECONDS <= seconds < math.inf:
        raise ConfigError(
            field,
            value,
            "use a duration of at least 100ms, for example 60s or 1m30s, or infinite "
            "(a number without a unit counts nanoseconds)",
        )
    return seconds


def parse_grace(field: str, text: str) -> float:
    """Seconds of a Go duration."""
    seconds = _parse_go_duration(text)
    if seconds is None or seconds > _LONGEST_GRACE_SECONDS:
        raise ConfigError(field, text, "use a duration of at most 24h, for example 30s or 2m")
    return seconds


def parse_address(field: str, text: str) -> tuple[str | None, int]:
    """Host and port of `host:port`. The host is None for `:port`, which is every interface."""
    match = _ADDRESS.fullmatch(text)
    if match is None or int(match["port"]) > _HIGHEST_PORT:
        raise ConfigError(
            field, text, "use host:port, for example 0.0.0.0:9400, or :9400 for every interface"
        )
    return match["ipv6"] or match["host"] or None, int(match["port"])


def _parse_reference(field: str, value: str | int) -> str:
    text = str(value).strip()
    if _INDEX.fullmatch(text):
        return ":".join(str(int(number)) for number in text.split(":"))
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(
            field,
            value,
            "use an index (0), gpu:mig (0:1), GPU-<uuid>, MIG-<uuid> or MIG-GPU-<uuid>/<gi>/<ci>",
        )
    # NVML writes UUIDs in lower case.
    return match["kind"] + match["uuid"].lower() if match["uuid"] else text


def _parse_go_duration(text: str) -> float | None:
    unsigned = text.removeprefix("+")
    if unsigned == "0":
        return 0.0
    found = list(_DURATION_PART.finditer(unsigned))
    if not found or "".join(match[0] for match in found) != unsigned:
        return None
    return sum(float(match["count"]) * _SECONDS[match["unit"]] for match in found)
