"""Restricts a node of a nested cluster to the GPUs that a file or a variable lists."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import NESTED_ENV, NESTED_MOUNT, Settings
from gpuslice.files.untrusted import FileTooLarge, NotRegularFile, read_untrusted
from gpuslice.gpus.inventory import Inventory
from gpuslice.slicing.allocated_devices import allocated_gpus, missing
from gpuslice.slicing.allocated_list import (
    LONGEST_BYTES,
    VARIABLE,
    AllocatedDevicesError,
    parse_allocated_devices,
)
from gpuslice.slicing.errors import NothingToAdvertise
from gpuslice.slicing.notice import Notice

# Path, inode, size and time of the file with the list.
ListVersion = tuple[str, int, int, int]


class AllocatedDevicesUnreadable(NothingToAdvertise):
    """Names the field, its value and the remedy.

    The container that is the node may write the list later, so a guest can wait for it.
    """

    def __init__(self, field: str, value: object, remedy: str) -> None:
        super().__init__(
            f"{field}: {str(value)!r} is not valid: {remedy}", Code.INVALID_ALLOCATED_DEVICES
        )


def own_gpus(inventory: Inventory, settings: Settings) -> Inventory:
    """A nested node sees all GPUs of its host and owns some of them.

    Blocks on the disk. Raises SlicingError if the list is missing, malformed or of another node.
    """
    if settings.nested_env is None:
        return inventory
    file = list_file(Path(settings.nested_env))
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


def list_file(configured: Path, mounted: Path = Path(NESTED_MOUNT)) -> Path:
    """The file with the list. By default, it is where the host node mounts it, if it does.

    That file takes precedence: the other one may be a leftover in an image.
    """
    return mounted if str(configured) == NESTED_ENV and mounted.is_file() else configured


def list_version(settings: Settings) -> ListVersion | None:
    """Changes when the file with the list does. None: there is no file. Blocks on the disk."""
    if settings.nested_env is None:
        return None
    file = list_file(Path(settings.nested_env))
    try:
        found = file.stat()
    except OSError:
        return None
    return str(file), found.st_ino, found.st_size, found.st_mtime_ns


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
