"""Logs every change of the node's state."""

from __future__ import annotations

from gpuslice.node.changes import changes
from gpuslice.node.snapshot import Snapshot
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


def log_changes(before: Snapshot, after: Snapshot) -> None:
    """A reader of `NodeState`."""
    for change in changes(before, after):
        log.log(change.level, change.code, change.event, **change.fields)
