"""Splits edits into Allocate's answer and what a CDI specification contains.

The runtime applies CDI edits after the variables of the pod, so they replace them. Variables in
Allocate's answer do not.
"""

from __future__ import annotations

from dataclasses import replace

from gpuslice.inject.edits import ContainerEdits
from gpuslice.inject.visible import VISIBLE_DEVICES


def named_answer(edits: ContainerEdits, name: str, *, strict: bool) -> ContainerEdits:
    """Allocate's answer that refers to the specification with this name.

    `strict`: a runtime that ignores CDI must not start an unlimited container, so the container
    sees no GPU then. Otherwise the limits are also in the answer, for such a runtime.
    """
    # First: other specifications of the container may replace the list of devices.
    names = (name, *edits.cdi_devices)
    if not strict:
        return replace(edits, cdi_devices=names)
    return ContainerEdits(
        env={VISIBLE_DEVICES: "void"}, annotations=edits.annotations, cdi_devices=names
    )


def specified(edits: ContainerEdits) -> ContainerEdits:
    """What the specification contains. Annotations and names are in Allocate's answer."""
    return replace(edits, annotations={}, cdi_devices=())
