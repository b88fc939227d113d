"""Restricts a node of a nested cluster to the GPUs that a file or a variable lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.files.untrusted import FileTooLarge, NotRegularFile, read_untrusted
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.allocated_devices import (
    LONGEST_BYTES,
    VARIABLE,
    AllocatedDevicesError,
    allocated_gpus,
    missing,
    parse_allocated_devices,
)
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.notice import Notice


class AllocatedDevicesUnreadable(SlicingError):
    """Names the field, its value and the remedy."""

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(
            Code.INVALID_ALLOCATED_DEVICES, f"{field}: {str(value)!r} is not valid: {remedy}"
        )


def own_gpus(inventory: Inventory, settings: Settings) -> Inventory:
    """A nested node sees all GPUs of its host and owns some of them.

    Blocks on the disk. Raises SlicingError if the list is missing, malformed or of another node.
    """
    if settings.nested_env is None:
        return inventory
    file = Path(settings.nested_env)
    by_file = file.exists() or settings.nested_devices is None
    allocated = read_allocated_devices(file if by_file else None, settings.nested_devices)
    own = allocated_gpus(
        inventory.gpus,
        allocated,
        mig_strategy=settings.rules.mig_strategy,
        some_do_not_answer=any(skipped.silent for skipped in inventory.skipped),
    )
    notices = inventory.notices
    if absent := missing(inventory.gpus, allocated):
        message = f"allocated GPUs do not answer: {', '.join(absent)}"
        notices = (*notices, Notice(Code.GPU_SKIPPED, message))
    return replace(inventory, gpus=own, notices=notices)


def read_allocated_devices(path: Path | None, variable: str | None) -> tuple[str, ...]:
    """From the file if a path is given, else from the value of the variable."""
    if path is not None:
        return _parsed(_read(path), "nested-env", path)
    if variable is not None:
        return _parsed(variable, "environment", VARIABLE)
    raise AllocatedDevicesUnreadable(
        "nested-env", "", f"name the file that the host node mounts, or set {VARIABLE}"
    )


def _parsed(text: str, field: str, value: object) -> tuple[str, ...]:
    try:
        return parse_allocated_devices(text)
    except AllocatedDevicesError as error:
        raise AllocatedDevicesUnreadable(field, value, str(error)) from error


def _read(path: Path) -> str:
    try:
        # Links are allowed: whoever runs the nested node names this path.
        content = read_untrusted(path, LONGEST_BYTES, follow_links=True)
    except NotRegularFile as error:
        raise AllocatedDevicesUnreadable(
            "nested-env", path, "this is not a regular file; name the file that lists the GPUs"
        ) from error
    except FileTooLarge as error:
        raise AllocatedDevicesUnreadable(
            "nested-env", path, f"{error.strerror}; name the file that lists the GPUs"
        ) from error
    except OSError as error:
        raise AllocatedDevicesUnreadable(
            "nested-env",
            path,
            f"the file cannot be read ({error.strerror}); mount it from the host node, or unset "
            "nested=guest if this is not a nested node",
        ) from error
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise AllocatedDevicesUnreadable(
            "nested-env", path, f"the file is not UTF-8 at byte {error.start}; use plain text"
        ) from error
