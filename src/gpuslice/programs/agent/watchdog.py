"""Watches that no container uses more memory than it was granted.

MPS limits each process, so several processes of one container can exceed its share together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.config.timing import Timing
from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.kubelet.pod_resources import PodResources, PodResourcesError, pod_resources_socket
from gpuslice.node.driver import Driver
from gpuslice.node.errors import NoGpus
from gpuslice.node.state import NodeState
from gpuslice.programs.agent.watchdog_actions import WatchdogActions
from gpuslice.slicing.pool import Pool
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel
from gpuslice.telemetry.metrics import ContainerMemory, Metrics
from gpuslice.watchdog.attribution import Attribution, Usage, attribute, watched_gpus
from gpuslice.watchdog.container_names import ContainerName
from gpuslice.watchdog.decision import Policy, Violations, allowed_bytes, decide
from gpuslice.watchdog.process_files import sees_only_itself
from gpuslice.watchdog.scan import Containers, GpuProcesses, read_containers, read_gpu_processes

log = Logger(__name__)

_RIGHTS, _READING, _HIDDEN = "rights", "reading", "hidden processes"
_MIB = 1024 * 1024
_ACTS = (WatchdogMode.TERMINATE, WatchdogMode.EVICT)


class Unreadable(Exception):
    """The message says what cannot be read."""


class Watchdog:
    def __init__(
        self,
        driver: Driver,
        state: NodeState,
        metrics: Metrics,
        actions: WatchdogActions,
        timing: Timing,
    ) -> None:
        self._driver = driver
        self._state = state
        self._metrics = metrics
        self._actions = actions
        self._timing = timing
        self._violations: Violations = {}
        self._conditions = Conditions(log)
        # The mode that the log has; None: nothing is watched.
        self._logged: WatchdogMode | None = None

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            try:
                await self._round()
            except Exception as error:  # noqa: BLE001 (the GPUs of the node do not depend on it)
                self._failed(error)
            await asyncio.sleep(self._timing.watchdog_scan)

    async def _round(self) -> None:
        snapshot = self._state.current
        settings, pools = snapshot.settings, snapshot.pools
        wanted = watched_gpus(pools)
        if settings is None or settings.watchdog.mode is WatchdogMode.OFF or not wanted:
            self._stop()
            return
        if (missing := await asyncio.to_thread(_missing_right, settings)) is not None:
            self._conditions.set(
                _RIGHTS,
                Code.WATCHDOG_OFF,
                "the watchdog is off: nothing keeps a container with several processes from using "
                "more memory than it was granted",
                missing,
                level=LogLevel.INFO,
            )
            self._stop()
            return
        self._conditions.clear(_RIGHTS)
        self._started(settings)
        # All GPUs: through MPS, a process can reach GPUs that its container was not granted.
        indices = {g.uuid: g.index for g in snapshot.inventory.gpus if not g.mig_enabled}
        try:
            await self._watch(settings, pools, indices)
        except Unreadable as error:
            self._failed(error)
        else:
            self._conditions.clear(_READING, Code.WATCHDOG_ON, "the watchdog works again")
            self._publish(acts=self._actions.possible(settings.watchdog.mode) in _ACTS)

    async def _watch(
        self, settings: Settings, pools: tuple[Pool, ...], indices: Mapping[str, int]
    ) -> None:
        read, attribution = await self._read(settings, pools, indices)
        watchdog = settings.watchdog
        slack = watchdog.slack_mib * _MIB
        self._metrics.container_memory(
            [_memory(usage, slack) for usage in attribution.usages], attribution.unattributed
        )
        policy = Policy(
            self._actions.possible(watchdog.mode),
            watchdog.grace_seconds,
            self._timing.watchdog_step,
            slack,
        )
        now = asyncio.get_running_loop().time()
        decision = decide(self._violations, attribution.usages, policy, now, read.unread)
        self._violations = decision.violations
        await self._actions.perform(decision.actions, settings, pools)

    async def _read(
        self, settings: Settings, pools: tuple[Pool, ...], indices: Mapping[str, int]
    ) -> tuple[GpuProcesses, Attribution]:
        """Raises Unreadable."""
        try:
            read = await self._driver.read(lambda nvml: read_gpu_processes(nvml, indices))
        except NoGpus as error:
            raise Unreadable(str(error)) from error
        if read.unread and len(read.unread) == len(indices):
            raise Unreadable("; ".join(sorted(set(read.unread.values()))))
        if not read.processes:
            return read, Attribution()
        logs = Path(settings.watchdog.container_logs)
        pids = [process.pid for process in read.processes]
        try:
            containers = await asyncio.to_thread(read_containers, pids, logs)
        except OSError as error:
            raise Unreadable(f"{logs} cannot be read ({error.strerror})") from error
        self._report_hidden(containers)
        devices = await self._devices(settings) if containers.names else {}
        return read, attribute(
            read.processes, containers.contained, containers.names, devices, pools
        )

    async def _devices(
        self, settings: Settings
    ) -> dict[ContainerName, Mapping[str, frozenset[str]]]:
        socket = pod_resources_socket(Path(settings.kubelet_socket))
        try:
            listed = await PodResources(socket).containers()
        except PodResourcesError as error:
            raise Unreadable(str(error)) from error
        return {ContainerName(one.namespace, one.pod, one.container): one.devices for one in listed}

    def _failed(self, error: Exception) -> None:
        """Nothing is done without knowing, and what is known stays."""
        self._publish(acts=False)
        expected = isinstance(error, Unreadable)
        self._conditions.set(
            _READING,
            Code.WATCHDOG_BLIND,
            "the watchdog cannot read which container uses how much memory",
            error if expected else f"{type(error).__name__}: {error}",
            level=LogLevel.WARNING,
        )

    def _report_hidden(self, containers: Containers) -> None:
        if not containers.hidden:
            self._conditions.clear(_HIDDEN)
            return
        self._conditions.set(
            _HIDDEN,
            Code.WATCHDOG_BLIND,
            "the driver lists processes that the watchdog cannot see",
            "they have just ended, or hostPID is not set for the pod of the agent",
            level=LogLevel.INFO,
        )

    def _started(self, settings: Settings) -> None:
        mode = settings.watchdog.mode
        if self._logged is not mode:
            self._logged = mode
            log.info(
                Code.WATCHDOG_ON,
                "watching the memory of containers",
                mode=mode.value,
                grace=f"{settings.watchdog.grace_seconds:g}s",
                slack=f"{settings.watchdog.slack_mib}MiB",
            )
        self._metrics.watching(True)

    def _stop(self) -> None:
        self._logged = None
        self._violations = {}
        self._metrics.watching(False)
        self._publish(acts=False)

    def _publish(self, *, acts: bool) -> None:
        self._state.publish(replace(self._state.current, watchdog_acts=acts))


def _missing_right(settings: Settings) -> str | None:
    """What the deployer must add. None: the watchdog can work. Blocks."""
    if not settings.kubelet_socket:
        return "kubelet-socket is empty, and the kubelet lists the devices of containers"
    if sees_only_itself():
        return "this pod sees only its own processes: set hostPID: true (docs/security.md)"
    logs = Path(settings.watchdog.container_logs)
    if not logs.is_dir():
        return f"{logs} does not exist: mount it from the host, read-only (docs/security.md)"
    return None


def _memory(usage: Usage, slack_bytes: int) -> ContainerMemory:
    name = usage.container.name
    return ContainerMemory(
        name.namespace,
        name.pod,
        name.container,
        usage.gpu,
        usage.used_bytes,
        usage.granted_bytes,
        allowed_bytes(usage, slack_bytes),
    )
