"""The GPUs that a node of a nested cluster gets from the node it runs on."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from gpuslice.codes import Code
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu, MigDevice
from gpuslice.slicing.rules import MigStrategy

VARIABLE = "NVIDIA_ALLOCATED_DEVICES"
LONGEST_BYTES = 64 * 1024

_HEX = r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
_NUMBER = r"[0-9]{1,4}"
_DEVICE = re.compile(
    rf"GPU-{_HEX}|MIG-{_HEX}|MIG-GPU-{_HEX}/{_NUMBER}/{_NUMBER}|{_NUMBER}(:{_NUMBER})?"
)
_ASSIGNMENT = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=(?P<value>.*)")
_QUOTED = re.compile(r"""(?P<quote>["'])(?P<value>[^"']*)(?P=quote)\s*(#.*)?""")
_LONGEST_SHOWN = 80


class AllocatedDevicesError(SlicingError):
    """Names the field, its value and the remedy."""

    def __init__(self, value: str, remedy: str) -> None:
        shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
        super().__init__(
            Code.INVALID_ALLOCATED_DEVICES, f"{VARIABLE}: {shown!r} is not valid: {remedy}"
        )


def parse_allocated_devices(text: str) -> tuple[str, ...]:
    """Parses an environment file that sets the variable, or the value of the variable alone."""
    _check_text(text)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise AllocatedDevicesError(text, f"it is empty; set {VARIABLE}=<UUID>,<UUID>,…")
    return _devices(_value(lines))


def missing(gpus: Sequence[Gpu], allocated: Iterable[str]) -> tuple[str, ...]:
    """Allocated devices that are not on this node."""
    known = {name for gpu in gpus for name in _names(gpu)}
    known |= {name for gpu in gpus for mig in gpu.mig for name in _mig_names(gpu, mig)}
    return tuple(name for name in allocated if _folded(name) not in known)


def allocated_gpus(
    gpus: Sequence[Gpu],
    allocated: Sequence[str],
    *,
    mig_strategy: MigStrategy = MigStrategy.MIXED,
    some_do_not_answer: bool = False,
) -> tuple[Gpu, ...]:
    """The allocated GPUs. A GPU of which MIG devices are allocated keeps only these.

    If GPUs of the node do not answer, a missing device may be one of them, and the others are
    returned. A whole GPU is never returned if only MIG devices of it are allocated.
    """
    foreign = missing(gpus, allocated)
    if foreign and not (some_do_not_answer and len(foreign) < len(allocated)):
        here = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise AllocatedDevicesError(
            ",".join(foreign),
            "this node has no such device. The list belongs to another node, or the GPU is lost. "
            f"Remove the list and let the host node write a new one. GPUs of this node: {here}",
        )
    wanted = {_folded(name) for name in allocated}
    kept = [own for gpu in gpus if (own := _kept(gpu, wanted)) is not None]
    for gpu in kept:
        if mig_strategy is MigStrategy.NONE and not wanted & _names(gpu):
            raise AllocatedDevicesError(
                ",".join(mig.uuid for mig in gpu.mig),
                f"these are MIG devices, and GPU {gpu.index} would be advertised as a whole; "
                "set migStrategy to single or mixed",
            )
    return tuple(kept)


def _kept(gpu: Gpu, wanted: set[str]) -> Gpu | None:
    if wanted & _names(gpu):
        return gpu
    mig = tuple(mig for mig in gpu.mig if wanted & _mig_names(gpu, mig))
    return replace(gpu, mig=mig) if mig else None


def _names(gpu: Gpu) -> set[str]:
    return {_folded(gpu.uuid), str(gpu.index)}


def _mig_names(gpu: Gpu, mig: MigDevice) -> set[str]:
    legacy = f"MIG-{gpu.uuid}/{mig.gpu_instance}/{mig.compute_instance}"
    return {_folded(mig.uuid), _folded(legacy), f"{gpu.index}:{mig.index}"}


def _folded(name: str) -> str:
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
    assignments = [_ASSIGNMENT.fullmatch(line) for line in lines]
    if len(lines) == 1 and assignments[0] is None:
        return lines[0]
    values = {
        _unquoted(found["value"].strip())
        for found in assignments
        if found is not None and found["name"] == VARIABLE
    }
    if not values:
        raise AllocatedDevicesError(
            "\n".join(lines), f"no line sets the variable; set {VARIABLE}=<UUID>,<UUID>,…"
        )
    if len(values) > 1:
        raise AllocatedDevicesError(
            " and ".join(sorted(values)),
            "it is set more than once, to different lists; keep one of them",
        )
    return values.pop()


def _unquoted(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        return quoted["value"].strip()
    return _without_comment(value).strip()


def _without_comment(value: str) -> str:
    """A comment begins with a `#` after a blank. Linear in the length of the value."""
    position = value.find("#", 1)
    while position > 0 and not value[position - 1].isspace():
        position = value.find("#", position + 1)
    return value if position < 0 else value[:position]


def _devices(value: str) -> tuple[str, ...]:
    if not value:
        raise AllocatedDevicesError(
            value, "it names no GPU; the host node must allocate at least one"
        )
    devices = tuple(item.strip() for item in value.split(","))
    for device in devices:
        if _DEVICE.fullmatch(device) is None:
            raise AllocatedDevicesError(
                device,
                "it is neither the UUID of a GPU (GPU-…) or MIG device (MIG-…) nor an index; "
                "separate devices by commas",
            )
    twice, times = Counter(map(_folded, devices)).most_common(1)[0]
    if times > 1:
        raise AllocatedDevicesError(twice, "it is listed more than once; list each GPU once")
    return devices
