"""Annotations of a pod that set the share of threads of its containers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from enum import Enum
from typing import NoReturn

from gpuslice.codes import Code
from gpuslice.slicing.device import Device
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.threads import Percent, ThreadAmount, parse_amount, percentage_of

# For all containers of the pod, and for one: `gpuslice.io/threads.<container>`.
KEY = "gpuslice.io/threads"

_LONGEST_SHOWN = 40
# The agent keeps those of all pods of the node.
_LONGEST_KEPT = 64


class ThreadAnnotations(Enum):
    """What annotations of pods can change."""

    OFF = "off"  # nothing
    LOWER = "lower"  # less than the container was granted
    ANY = "any"  # any share


def thread_annotations(annotations: Mapping[str, str], containers: Iterable[str]) -> dict[str, str]:
    """Those that can apply to these containers. A text that is too long stays invalid."""
    keys = [KEY, *(f"{KEY}.{container}" for container in containers)]
    found = {key: annotations[key] for key in keys if key in annotations}
    return {
        key: text if len(text) <= _LONGEST_KEPT else f"{text[:_LONGEST_KEPT]}…"
        for key, text in found.items()
    }


def wanted_threads(annotations: Mapping[str, str], container: str | None) -> ThreadAmount | None:
    """None: the pod has no such annotation. Raises GrantRefused if it is not valid.

    `container` is None if its name is not known; then only the annotation for all containers
    applies.
    """
    keys = [KEY] if container is None else [f"{KEY}.{container}", KEY]
    for key in keys:
        if key in annotations:
            return _amount(key, annotations[key])
    return None


def apply_annotation(
    limits: Limits, device: Device, wanted: ThreadAmount | None, policy: ThreadAnnotations
) -> Limits:
    """Raises GrantRefused if the device cannot have this many SMs."""
    if wanted is None or policy is ThreadAnnotations.OFF:
        return limits
    granted = limits.threads_percent
    if policy is ThreadAnnotations.LOWER and granted is not None:
        # More SMs than the GPU has are not less than what was granted.
        return replace(limits, threads_percent=min(_percent(wanted, device) or granted, granted))
    return replace(limits, threads_percent=_percent(wanted, device) or _too_many(wanted, device))


def _percent(wanted: ThreadAmount, device: Device) -> int | None:
    """A number of SMs is rounded as the driver rounds. None: the device has fewer SMs."""
    if isinstance(wanted, Percent):
        return wanted.value
    sms = device.multiprocessors
    if not sms:
        raise GrantRefused(
            Code.ANNOTATION_INVALID,
            f"annotation {KEY}: {wanted} cannot be applied to GPU {device.index}, because its "
            'number of SMs is unknown: use a percentage, for example "30%"',
        )
    return percentage_of(wanted.count, sms) if wanted.count <= sms else None


def _too_many(wanted: ThreadAmount, device: Device) -> NoReturn:
    raise GrantRefused(
        Code.ANNOTATION_INVALID,
        f"annotation {KEY}: {wanted} cannot be applied to GPU {device.index}, which has "
        f"{device.multiprocessors}: use at most {device.multiprocessors} SMs, or a percentage",
    )


def _amount(key: str, text: str) -> ThreadAmount:
    remedy = 'use a percentage from 1% to 100% or a number of SMs, for example "30%" or "20 SMs"'
    try:
        amount = parse_amount(text)
    except ValueError as error:
        amount, remedy = None, str(error)
    if amount is None:
        raise GrantRefused(
            Code.ANNOTATION_INVALID,
            f"annotation {key}: {text[:_LONGEST_SHOWN]!r} is not valid: {remedy}",
        )
    return amount
