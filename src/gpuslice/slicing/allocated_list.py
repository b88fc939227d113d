"""Parses the list of GPUs of a nested node, as hosts and shell scripts write it.

Every step is linear in the size of the text: the text comes from a container.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from gpuslice.codes import Code
from gpuslice.slicing.errors import SlicingError

VARIABLE = "NVIDIA_ALLOCATED_DEVICES"
LONGEST_BYTES = 64 * 1024

_HEX = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NUMBER = r"[0-9]{1,4}"
_DEVICE = re.compile(
    rf"GPU-{_HEX}|MIG-{_HEX}|MIG-GPU-{_HEX}/{_NUMBER}/{_NUMBER}|{_NUMBER}(:{_NUMBER})?"
)
# `NAME=`, also as `export` and `declare -x` of a shell write it.
_ASSIGNMENT = re.compile(
    r"(?:(?:export|declare|typeset|readonly)(?:[ \t]+-[A-Za-z]+)*[ \t]+)?"
    r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)[ \t]*="
)
_SEPARATORS = re.compile(r"[\s,]+")
_COMMENT = re.compile(r"[ \t]#")
# A shell writes $'…' for a value with line breaks.
_OPENING_QUOTES = ("$'", '"', "'")
_LONGEST_SHOWN = 80


class AllocatedDevicesError(SlicingError):
    """Names the field, its value and the remedy."""

    def __init__(self, value: str, remedy: str) -> None:
        shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
        super().__init__(
            Code.INVALID_ALLOCATED_DEVICES, f"{VARIABLE}: {shown!r} is not valid: {remedy}"
        )


def parse_allocated_devices(text: str) -> tuple[str, ...]:
    """Parses an environment file that sets the variable, or the value of the variable alone.

    Devices are separated by commas, blanks or line breaks.
    """
    _check_text(text)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise AllocatedDevicesError(text, f"it is empty; set {VARIABLE}=<UUID>,<UUID>,…")
    return _devices(_value(lines))


def folded(name: str) -> str:
    """Devices are compared without regard to case."""
    return name.casefold()


def _check_text(text: str) -> None:
    size = len(text.encode("utf-8", "surrogatepass"))
    if size > LONGEST_BYTES:
        raise AllocatedDevicesError(
            text, f"it has {size} bytes, and the limit is {LONGEST_BYTES}; list UUIDs only"
        )
    strange = next((c for c in text if (c < " " and c not in "\t\r\n") or c == "\x7f"), None)
    if strange is not None:
        raise AllocatedDevicesError(
            text, f"it contains the control character {strange!r}; use plain text"
        )


def _value(lines: Sequence[str]) -> str:
    if not any(map(_ASSIGNMENT.match, lines)):
        return " ".join(map(_without_comment, lines))
    values = {" ".join(_names(value)): value for value in _values(lines)}
    if not values:
        raise AllocatedDevicesError(
            "\n".join(lines), f"no line sets the variable; set {VARIABLE}=<UUID>,<UUID>,…"
        )
    if len(values) > 1:
        raise AllocatedDevicesError(
            " and ".join(sorted(values.values())),
            "it is set more than once, to different lists; keep one of them",
        )
    return values.popitem()[1]


def _values(lines: Sequence[str]) -> Iterator[str]:
    """What the lines assign to the variable. A value may span several lines."""
    rest = iter(enumerate(lines))
    for position, line in rest:
        found = _ASSIGNMENT.match(line)
        if found is None or found["name"] != VARIABLE:
            continue
        value = line[found.end() :].strip()
        opening = next((quote for quote in _OPENING_QUOTES if value.startswith(quote)), None)
        if opening is None:
            yield " ".join([_without_comment(value), *_continuation(lines[position + 1 :])])
            continue
        parts = [value.removeprefix(opening)]
        while opening[-1] not in parts[-1]:
            _, following = next(rest, (0, None))
            if following is None:
                raise AllocatedDevicesError(value, f"close the quotation mark {opening[-1]}")
            parts.append(following)
        inside, _, after = " ".join(parts).partition(opening[-1])
        if after.strip(" \t;") and not after.lstrip(" \t;").startswith("#"):
            raise AllocatedDevicesError(
                value, f"remove what follows the quotation mark {opening[-1]}"
            )
        yield _unescaped(inside) if opening == "$'" else inside


def _continuation(lines: Sequence[str]) -> Iterator[str]:
    """Lines with nothing but devices: `env` prints a value with line breaks this way."""
    for line in lines:
        names = _names(_without_comment(line))
        if not names or not all(map(_DEVICE.fullmatch, names)):
            return
        yield " ".join(names)


def _without_comment(value: str) -> str:
    comment = _COMMENT.search(value)
    return (value if comment is None else value[: comment.start()]).strip().rstrip(";")


def _unescaped(value: str) -> str:
    for escape in (r"\n", r"\t", r"\r"):
        value = value.replace(escape, " ")
    return value


def _names(value: str) -> list[str]:
    return [name for name in _SEPARATORS.split(value) if name]


def _devices(value: str) -> tuple[str, ...]:
    devices = tuple(_names(value))
    if not devices:
        raise AllocatedDevicesError(
            value, "it names no GPU; the host node must allocate at least one"
        )
    for device in devices:
        if _DEVICE.fullmatch(device) is None:
            raise AllocatedDevicesError(
                device,
                "it is neither the UUID of a GPU (GPU-…) or MIG device (MIG-…) nor an index; "
                "separate devices by commas, blanks or line breaks",
            )
    twice, times = Counter(map(folded, devices)).most_common(1)[0]
    if times > 1:
        raise AllocatedDevicesError(twice, "it is listed more than once; list each GPU once")
    return devices
