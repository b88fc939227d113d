"""Texts and numbers of the configuration -> values, with errors that name their source."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from gpuslice.config.errors import ConfigError
from gpuslice.config.option_values import OptionValue, parts
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.rules import ALL, Selection
from gpuslice.slicing.units import MemoryUnit, parse_mib

_NVIDIA = "nvidia.com/"
_LONGEST_NAME = 63
_SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")

_HEX = r"[0-9a-fA-F]"
_UUID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}"
_COUNT = re.compile(r"[0-9]{1,18}")
_INDEX = re.compile(r"[0-9]{1,6}(:[0-9]{1,6})?")
_NAMED = re.compile(rf"(?P<kind>GPU-|MIG-)(?P<uuid>{_UUID})|MIG-GPU-{_UUID}/[0-9]+/[0-9]+")

_DURATION_PART = re.compile(r"(?P<count>[0-9]+(\.[0-9]*)?|\.[0-9]+)(?P<unit>ns|us|µs|μs|ms|s|m|h)")
# More often would be a busy loop.
_SHORTEST_SECONDS = 0.1
_SECONDS = {
    "ns": 1e-9, "us": 1e-6, "µs": 1e-6, "μs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0,
}  # fmt: skip


def resource_name(field: str, text: str) -> str:
    """`gpu` and `nvidia.com/gpu` alike become `nvidia.com/gpu`."""
    name = text if text.startswith(_NVIDIA) else _NVIDIA + text
    if len(name) > _LONGEST_NAME:
        raise ConfigError(
            field, text, f"{name} has {len(name)} characters and may have {_LONGEST_NAME}"
        )
    if not _SUBDOMAIN.fullmatch(name.removeprefix(_NVIDIA)):
        raise ConfigError(
            field,
            text,
            "use nvidia.com/ and small letters, digits, dots and dashes, as nvidia.com/gpu.small",
        )
    return name


def selection(field: str, value: str | int | Sequence[str | int]) -> Selection:
    """`all`, a number of devices, or a list of them."""
    if value == "all":
        return ALL
    if isinstance(value, str):
        raise ConfigError(field, value, "write all, a number of devices, or a list of them")
    if isinstance(value, int):
        if value < 1:
            raise ConfigError(field, value, "use at least 1 device, or all")
        return Selection(count=value)
    if not value:
        raise ConfigError(field, [], "name at least one device, or write all")
    references = (_reference(f"{field}[{place}]", item) for place, item in enumerate(value))
    return Selection(references=tuple(dict.fromkeys(references)))


def memory_selection(said: OptionValue) -> Selection | None:
    """The same as a text: a comma makes a list, so that `2,` is the device 2 and not any two."""
    text = said.text.strip()
    if text == "none":
        return None
    chosen = _selection_of(said.source, text)
    for reference in chosen.references:
        if ":" in reference or reference.startswith("MIG-"):
            raise ConfigError(
                said.source, text, f"{reference} is a MIG device; only whole GPUs are cut by memory"
            )
    return chosen


def _selection_of(source: str, text: str) -> Selection:
    if _COUNT.fullmatch(text):
        return selection(source, int(text))
    if "," in text or _INDEX.fullmatch(text) or _NAMED.fullmatch(text):
        return selection(source, parts(text))
    return selection(source, text)


def _reference(field: str, value: str | int) -> str:
    text = str(value).strip()
    if _INDEX.fullmatch(text):
        return ":".join(str(int(part)) for part in text.split(":"))
    match = _NAMED.fullmatch(text)
    if match is None:
        raise ConfigError(
            field,
            value,
            "use an index (0), gpu:mig (0:1), GPU-<uuid>, MIG-<uuid> or MIG-GPU-<uuid>/<gi>/<ci>",
        )
    # NVML writes UUIDs in small letters.
    return match["kind"] + match["uuid"].lower() if match["uuid"] else text


def memory_unit(said: OptionValue) -> MemoryUnit:
    try:
        return MemoryUnit.parse(said.text)
    except SlicingError as error:
        raise ConfigError(said.source, said.text, str(error)) from error


def memory_reserve(said: OptionValue) -> int:
    if said.text.strip() == "0":
        return 0
    try:
        return parse_mib(said.text)
    except SlicingError as error:
        raise ConfigError(said.source, said.text, str(error)) from error


def interval_seconds(field: str, value: str | float) -> float | None:
    """A Go duration (`1m30s`), a number of nanoseconds, or `infinite` (None)."""
    if value == "infinite":
        return None
    seconds = _go_duration(value) if isinstance(value, str) else value * _SECONDS["ns"]
    if seconds is None or not _SHORTEST_SECONDS <= seconds < math.inf:
        raise ConfigError(
            field,
            value,
            "use a duration of at least 100ms, as 60s or 1m30s, or infinite "
            "(a number without a unit counts nanoseconds)",
        )
    return seconds


def _go_duration(text: str) -> float | None:
    unsigned = text.removeprefix("+")
    if unsigned == "0":
        return 0.0
    found = list(_DURATION_PART.finditer(unsigned))
    if not found or "".join(match[0] for match in found) != unsigned:
        return None
    return sum(float(match["count"]) * _SECONDS[match["unit"]] for match in found)
