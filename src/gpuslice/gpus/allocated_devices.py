"""What a node of a nested cluster was given, by the file or the variable that tells it so."""

from __future__ import annotations

import os
import stat
from dataclasses import replace
from pathlib import Path

from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.allocated_devices import (
    LONGEST_BYTES,
    VARIABLE,
    AllotmentError,
    absent,
    apply_allotment,
    parse_allotment,
)
from gpuslice.slicing.errors import SlicingError


class AllotmentUnreadable(SlicingError):
    """Names the field, its value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(f"{field}: {str(value)!r} is not valid: {remedy}")


def own_part(inventory: Inventory, settings: Settings) -> Inventory:
    """A node inside another one sees all GPUs and was given some of them.

    Blocks on the disk. Raises SlicingError where the list is missing, another node's or no list.
    """
    if settings.nested_env is None:
        return inventory
    file = Path(settings.nested_env)
    by_file = file.exists() or settings.nested_devices is None
    allotted = read_allotment(file if by_file else None, settings.nested_devices)
    own = apply_allotment(
        inventory.gpus,
        allotted,
        mig_strategy=settings.rules.mig_strategy,
        some_are_silent=any(left.silent for left in inventory.left_out),
    )
    missing = absent(inventory.gpus, allotted)
    notes = inventory.notes
    if missing:
        notes = (*notes, f"allotted, and not among the GPUs that answer: {', '.join(missing)}")
    return replace(inventory, gpus=own, notes=notes)


def read_allotment(path: Path | None, variable: str | None) -> tuple[str, ...]:
    """From the file, if there is a path, and else from the value of the variable."""
    if path is not None:
        return _parsed(_read(path), "nested-env", path)
    if variable is not None:
        return _parsed(variable, "environment", VARIABLE)
    raise AllotmentUnreadable(
        "nested-env", "", f"give the file that the node around mounted, or set {VARIABLE}"
    )


def _parsed(text: str, field: str, value: object) -> tuple[str, ...]:
    try:
        return parse_allotment(text)
    except AllotmentError as error:
        raise AllotmentUnreadable(field, value, str(error)) from error


def _read(path: Path) -> str:
    try:
        content = _read_regular_file(path)
    except OSError as error:
        raise AllotmentUnreadable(
            "nested-env",
            path,
            f"the file cannot be read ({error.strerror}); mount it from the node around, "
            "or leave the setting out where this is no nested node",
        ) from error
    if content is None:
        raise AllotmentUnreadable(
            "nested-env", path, "this is no regular file; give the file that lists the GPUs"
        )
    if len(content) > LONGEST_BYTES:
        raise AllotmentUnreadable(
            "nested-env",
            path,
            f"the file has more than {LONGEST_BYTES} bytes; give the file that lists the GPUs",
        )
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AllotmentUnreadable(
            "nested-env", path, f"the file is not UTF-8 at byte {error.start}; write it as text"
        ) from error


def _read_regular_file(path: Path) -> bytes | None:
    """None if it is something else. Opened without waiting: a pipe would never end."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            return file.read(LONGEST_BYTES + 1)
    finally:
        os.close(descriptor)
