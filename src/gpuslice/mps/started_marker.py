"""The file that tells a daemon of ours from one of another program, and for which GPUs it is."""

from __future__ import annotations

from collections.abc import Sequence

from gpuslice.codes import Code
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# The option of a daemon that has static partitions of SMs, and its line in the file.
PARTITIONS = "-S"


class StartedMarker:
    """The daemon works without it, so that failures are logged and nothing else."""

    def __init__(self, paths: DaemonPaths) -> None:
        self._path = paths.started

    def write(self, gpus: Sequence[str], *, partitions: bool = False) -> None:
        lines = (*gpus, PARTITIONS) if partitions else gpus
        try:
            self._path.write_text("".join(f"{line}\n" for line in lines))
        except OSError as error:
            self._failed(error)

    def remove(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            self._failed(error)

    def read(self) -> tuple[str, ...] | None:
        """The GPUs that the daemon was started with; None: it is not ours."""
        lines = self._lines()
        return None if lines is None else tuple(line for line in lines if line != PARTITIONS)

    @property
    def has_partitions(self) -> bool:
        """Whether the daemon was started for static partitions of SMs."""
        return PARTITIONS in (self._lines() or ())

    def _lines(self) -> list[str] | None:
        try:
            return self._path.read_text().split()
        except OSError:
            return None

    def _failed(self, error: OSError) -> None:
        log.warning(
            Code.MARKER_NOT_WRITTEN,
            "cannot update the marker of the MPS control daemon",
            file=self._path,
            reason=error.strerror,
        )
