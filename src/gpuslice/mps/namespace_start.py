"""Starts a daemon with namespaces, if it can have them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from gpuslice.codes import Code
from gpuslice.mps.control import CannotProbe, MpsUnavailable
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.daemon_plan import DaemonSpec
from gpuslice.mps.driver_programs import start_daemon
from gpuslice.mps.namespace_control import NamespaceControl
from gpuslice.mps.namespace_marker import NamespaceMarker
from gpuslice.mps.namespaces import DEFAULT
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)


class NamespaceStart:
    def __init__(self, paths: DaemonPaths, control: NamespaceControl) -> None:
        self._paths = paths
        self._control = control
        self._marker = NamespaceMarker(paths.namespaces)
        # Whether they do not work as documented.
        self._are_missing = False

    @property
    def exist(self) -> bool:
        """Whether the daemon that runs or starts has namespaces."""
        return self._marker.exists

    def suit(self, wanted: DaemonSpec) -> bool:
        """Whether a daemon that runs has what the settings ask for: namespaces, or none."""
        plan = wanted.namespaces
        if self.exist:
            return plan is not None
        return plan is None or not plan.required

    def forget(self) -> None:
        """The daemon has ended, or one without namespaces starts."""
        self._marker.remove()

    async def start(self, wanted: DaemonSpec, stop: Callable[[], Awaitable[None]]) -> bool:
        """False: a daemon without them must do. `stop` ends a daemon. Raises MpsUnavailable."""
        plan = wanted.namespaces
        if plan is None or (self._are_missing and not plan.required):
            return False
        # First: it has another protocol, also if this program is killed meanwhile.
        self._marker.write(ready=False)
        try:
            await start_daemon(self._paths, wanted.gpus, wanted.namespace_options)
            [gpu] = wanted.gpus
            await self._control.start_server(gpu, plan.others)
        except CannotProbe:
            raise
        except MpsUnavailable as error:
            await stop()
            if plan.required:
                raise
            self._marker.remove()
            self._are_missing = True
            log.warning(
                Code.MPS_NAMESPACES_UNAVAILABLE,
                "namespaces of MPS do not work as documented, starting the MPS control daemon "
                "without them: a program can raise its own thread limit",
                daemon=wanted.name,
                reason=error,
            )
            return False
        self._marker.write(ready=True)
        return True

    async def update(self, wanted: DaemonSpec) -> None:
        """Sets the limits of clients that are in no container's namespace."""
        if wanted.namespaces is not None:
            await self._control.put(DEFAULT, wanted.namespaces.others)
            self._marker.write(ready=True)
