"""Triggers the reconciler when the GPUs of the node change."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.node.driver import Driver
from gpuslice.node.triggers import Trigger, Triggers
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


async def scan_for_changes(
    driver: Driver,
    triggers: Triggers,
    interval_seconds: float,
    awaited: Callable[[], Iterable[Path]] = tuple,
) -> None:
    """`awaited` returns device nodes that are missing now."""
    known: tuple[str, ...] = ()
    while True:
        await asyncio.sleep(interval_seconds)
        appeared = (f"{node} appeared" for node in awaited() if node.exists())
        found = (*await driver.changes(), *appeared)
        # A scan finds the same changes again until the reconciler has enumerated the GPUs.
        if found and found != known:
            log.info(
                Code.HARDWARE_CHANGED, "the GPUs of this node changed", changes="; ".join(found)
            )
        if found:
            triggers.add(Trigger.HARDWARE)
        known = found
