"""The file that tells a daemon of ours from one of another program, and for which GPUs it is."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class StartedMarker:
    """The daemon works without it, so that failures are logged and nothing else."""

    def __init__(self, paths: DaemonPaths) -> None:
        self._path = paths.started

    def write(self, gpus: Sequence[str]) -> None:
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
