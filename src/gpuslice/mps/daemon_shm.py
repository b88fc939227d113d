"""The shared memory of one daemon: logs what is wrong with it."""

from __future__ import annotations

from gpuslice.codes import Code
from gpuslice.mps.control import MpsUnavailable
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.shm import ShmError, prepare_shm, remove_shm
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel

log = Logger(__name__)

_SHM = "shared memory"


class DaemonShm:
    def __init__(self, paths: DaemonPaths, daemons: int) -> None:
        """`daemons`: how many there are, which share the memory of the node."""
        self._paths = paths
        self._daemons = daemons
        self._conditions = Conditions(log)

    def prepare(self) -> None:
        """Raises MpsUnavailable. Blocks."""
        try:
            bounded = prepare_shm(self._paths, self._daemons)
        except ShmError as error:
            raise MpsUnavailable(str(error)) from error
        if not bounded:
            self._conditions.set(
                _SHM,
                Code.MPS_SHARED_MEMORY_NOT_BOUNDED,
                "the shared memory of the MPS control daemon has no size limit of its own",
                f'mount the MPS root at {self._paths.root} with mountPropagation "Bidirectional"',
                level=LogLevel.WARNING,
                daemon=self._paths.name,
            )

    def remove(self) -> None:
        """Blocks."""
        try:
            remove_shm(self._paths)
        except OSError as error:
            log.warning(
                Code.MPS_SHARED_MEMORY_FAILED,
                "cannot remove the shared memory of the MPS control daemon",
                daemon=self._paths.name,
                directory=self._paths.shm,
                reason=error,
            )
