"""A file that marks a running daemon as ours, and lists its GPUs."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class DaemonMarker:
    """A file that cannot be written is a warning: the daemon works without it. Blocks."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def write(self, gpus: Iterable[str]) -> None:
        try:
            self._path.write_text("".join(f"{gpu}\n" for gpu in gpus))
        except OSError as error:
            self._failed(error)

    def remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error)

    def read(self) -> tuple[str, ...] | None:
        """The GPUs that the daemon was started with; None: it is not ours."""
        try:
            return tuple(self._path.read_text().split())
        except OSError:
            return None

    def _failed(self, error: OSError) -> None:
        log.warning(
            Code.MARKER_NOT_WRITTEN,
            "cannot update the marker of the MPS control daemon",
            file=self._path,
            reason=error.strerror,
        )
