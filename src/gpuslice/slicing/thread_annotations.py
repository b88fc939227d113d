"""Annotations of a pod that set the share of threads of its containers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum

from gpuslice.codes import Code
from gpuslice.slicing.errors import GrantRefused
from gpuslice.slicing.limits import Limits

# For all containers of the pod, and for one: `gpuslice.io/threads.<container>`.
KEY = "gpuslice.io/threads"

_LONGEST_SHOWN = 40


class ThreadAnnotations(Enum):
    """What annotations of pods can change."""

    OFF = "off"  # nothing
    LOWER = "lower"  # less than the container was granted
    ANY = "any"  # any share


def wanted_percent(annotations: Mapping[str, str], container: str | None) -> int | None:
    """None: the pod has no such annotation. Raises GrantRefused if it is not valid.

    `container` is None if its name is not known; then only the annotation for all containers
    applies.
    """
    keys = [KEY] if container is None else [f"{KEY}.{container}", KEY]
    for key in keys:
        if key in annotations:
            return _percent(key, annotations[key])
    return None


def apply_annotation(limits: Limits, wanted: int | None, policy: ThreadAnnotations) -> Limits:
    if wanted is None or policy is ThreadAnnotations.OFF:
        return limits
    granted = limits.threads_percent
    if policy is ThreadAnnotations.LOWER and granted is not None:
        wanted = min(wanted, granted)
    return replace(limits, threads_percent=wanted)


def _percent(key: str, text: str) -> int:
    match = re.fullmatch(r"([0-9]{1,3}) ?%", text.strip(), re.ASCII)
    if match is None or not 1 <= int(match[1]) <= 100:
        raise GrantRefused(
            Code.ANNOTATION_INVALID,
            f"annotation {key}: {text[:_LONGEST_SHOWN]!r} is not valid: use a percentage from 1% "
            'to 100%, for example "30%"',
        )
    return int(match[1])
