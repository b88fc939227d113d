"""The GPUs that a node of a nested cluster was given by the node around it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

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


class AllotmentError(SlicingError):
    """Names the field, its value and the remedy."""

    def __init__(self, value: str, remedy: str) -> None:
        shown = value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}…"
        super().__init__(f"{VARIABLE}: {shown!r} is not valid: {remedy}")


def parse_allotment(text: str) -> tuple[str, ...]:
    """Reads an environment file that sets the variable, or the variable's value alone."""
    _check_text(text)
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        raise AllotmentError(text, f"it is empty; write {VARIABLE}=<UUID>,<UUID>,…")
    return _devices(_value(lines))


def absent(gpus: Sequence[Gpu], allotted: Iterable[str]) -> tuple[str, ...]:
    """What was allotted and is not on this node."""
    known = {name for gpu in gpus for name in _names(gpu)}
    known |= {name for gpu in gpus for mig in gpu.mig for name in _mig_names(gpu, mig)}
    return tuple(name for name in allotted if _folded(name) not in known)


def apply_allotment(
    gpus: Sequence[Gpu],
    allotted: Sequence[str],
    *,
    mig_strategy: MigStrategy = MigStrategy.MIXED,
    some_are_silent: bool = False,
) -> tuple[Gpu, ...]:
    """The allotted GPUs; of a GPU that is allotted by its MIG devices, only these.

    Where GPUs of the node do not answer, what is missing may be one of them, and the rest is
    offered. Never offered is a whole GPU of which only MIG devices were allotted.
    """
    foreign = absent(gpus, allotted)
    if foreign and not (some_are_silent and len(foreign) < len(allotted)):
        here = ", ".join(gpu.uuid for gpu in gpus) or "none"
        raise AllotmentError(
            ",".join(foreign),
            "this node has no such device, so the list is another node's (or the GPU is lost); "
            f"remove it and let the node around write its own. GPUs of this node: {here}",
        )
    wanted = {_folded(name) for name in allotted}
    kept = [own for gpu in gpus if (own := _kept(gpu, wanted)) is not None]
    for gpu in kept:
        if mig_strategy is MigStrategy.NONE and not wanted & _names(gpu):
            raise AllotmentError(
                ",".join(mig.uuid for mig in gpu.mig),
                f"these are MIG devices, and GPU {gpu.index} would be offered as a whole; "
                "set the MIG strategy to single or mixed",
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
        raise AllotmentError(
            text, f"it has {size} bytes and may have {LONGEST_BYTES}; it is a list of UUIDs"
        )
    strange = next((c for c in text if (c < " " and c not in "\t\r\n") or c == "\x7f"), None)
    if strange is not None:
        raise AllotmentError(text, f"it holds the control character {strange!r}; write plain text")


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
        raise AllotmentError(
            "\n".join(lines), f"no line sets the variable; write {VARIABLE}=<UUID>,<UUID>,…"
        )
    if len(values) > 1:
        raise AllotmentError(
            " and ".join(sorted(values)), "it is set to different lists; keep one of them"
        )
    return values.pop()


def _unquoted(value: str) -> str:
    quoted = _QUOTED.fullmatch(value)
    if quoted is not None:
        return quoted["value"].strip()
    return re.split(r"\s+#", value, maxsplit=1)[0].strip()


def _devices(value: str) -> tuple[str, ...]:
    if not value:
        raise AllotmentError(value, "it names no GPU; the node around must allot at least one")
    devices = tuple(item.strip() for item in value.split(","))
    for device in devices:
        if _DEVICE.fullmatch(device) is None:
            raise AllotmentError(
                device,
                "it is neither the UUID of a GPU (GPU-…) or MIG device (MIG-…) nor an index; "
                "separate several by commas",
            )
    twice, times = Counter(map(_folded, devices)).most_common(1)[0]
    if times > 1:
        raise AllotmentError(twice, "it is named more than once; name every GPU once")
    return devices
