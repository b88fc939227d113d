"""The directory of CDI specifications that container runtimes read."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from gpuslice.cdi.document import VENDOR, Spec, Style, document
from gpuslice.cdi.errors import CdiError
from gpuslice.codes import Code
from gpuslice.files.atomic import replace_file
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_PREFIX, _SUFFIX = f"{VENDOR}-", ".json"


class CdiStore:
    """Our own files in it, each of them a specification by its class. All methods block.

    The runtime reads all files again after each change, so an equal file is not written.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def __contains__(self, cls: str) -> bool:
        return self._path(cls).exists()

    def classes(self) -> frozenset[str]:
        """Of the specifications that are there."""
        try:
            names = [path.name for path in self._directory.iterdir()]
        except OSError:
            return frozenset()
        return frozenset(
            name.removeprefix(_PREFIX).removesuffix(_SUFFIX)
            for name in names
            if name.startswith(_PREFIX) and name.endswith(_SUFFIX)
        )

    def put(self, spec: Spec, style: Style) -> None:
        """Adds or replaces one specification. Raises CdiError and leaves the old one if it fails.

        A specification without devices is removed: runtimes reject it, and then report the error
        for every container.
        """
        if not spec.devices:
            self.remove(spec.cls)
            return
        content = json.dumps(document(spec, style), indent=2).encode() + b"\n"
        path = self._path(spec.cls)
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            written = replace_file(path, content)
        except OSError as error:
            raise CdiError(
                f"{path} cannot be written ({error.strerror}): mount the host's "
                f"{self._directory} into this container, writable"
            ) from error
        if written:
            log.info(
                Code.CDI_SPEC_WRITTEN,
                "wrote CDI specification",
                file=str(path),
                devices=len(spec.devices),
            )

    def described(self, spec: Spec, style: Style) -> frozenset[str]:
        """The devices that the file describes exactly like this specification."""
        wanted: Mapping[str, Any] = document(spec, style)
        try:
            found = json.loads(self._path(spec.cls).read_bytes())
        except (OSError, ValueError):
            return frozenset()
        if not isinstance(found, dict) or _common(found) != _common(wanted):
            return frozenset()
        devices = found.get("devices")
        known = devices if isinstance(devices, list) else []
        return frozenset(device["name"] for device in wanted["devices"] if device in known)

    def remove(self, cls: str) -> None:
        """Raises CdiError if it is there and cannot be removed."""
        try:
            self._path(cls).unlink(missing_ok=True)
        except OSError as error:
            raise CdiError(
                f"{self._path(cls)} cannot be removed ({error.strerror}): remove it by hand"
            ) from error

    def collect(self, keep: Collection[str] = ()) -> None:
        """Removes the specifications of all other classes. Raises CdiError."""
        for cls in sorted(self.classes().difference(keep)):
            self.remove(cls)

    def _path(self, cls: str) -> Path:
        return self._directory / f"{_PREFIX}{cls}{_SUFFIX}"


def _common(content: Mapping[str, Any]) -> dict[str, Any]:
    """What all devices of a specification have in common."""
    return {key: value for key, value in content.items() if key != "devices"}
