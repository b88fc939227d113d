"""Performs what the watchdog decides."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.errors import ClusterError
from gpuslice.cluster.events import PodReference
from gpuslice.cluster.eviction import evict_pod
from gpuslice.codes import Code
from gpuslice.config.settings import Settings
from gpuslice.config.timing import Timing
from gpuslice.config.watchdog_settings import WatchdogMode
from gpuslice.mps.control import ControlClient
from gpuslice.mps.daemon_control import Controls
from gpuslice.mps.daemons import Daemon, daemons_of
from gpuslice.mps.namespace_control import NamespaceControl
from gpuslice.mps.namespace_marker import in_namespaces
from gpuslice.programs.agent.pod_event_recorder import PodEventRecorder
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.units import describe_mib
from gpuslice.telemetry.conditions import Conditions
from gpuslice.telemetry.logs import Logger, LogLevel
from gpuslice.telemetry.metrics import Metrics
from gpuslice.watchdog.attribution import Container, Usage
from gpuslice.watchdog.decision import Action, Began, Ended, EndProcess, Evict, Step
from gpuslice.watchdog.end_process import ProcessNotEnded, kill_process, terminate_client
from gpuslice.watchdog.process_files import ContainedProcess

log = Logger(__name__)

_EVICTION = "eviction"
_MIB = 1024 * 1024


class WatchdogActions:
    def __init__(
        self, api: ApiServer | None, events: PodEventRecorder, metrics: Metrics, timing: Timing
    ) -> None:
        self._api = api
        self._events = events
        self._metrics = metrics
        self._timing = timing
        self._conditions = Conditions(log)

    def possible(self, mode: WatchdogMode) -> WatchdogMode:
        """Pods cannot be evicted without an API server."""
        if mode is not WatchdogMode.EVICT or self._api is not None:
            self._conditions.clear(_EVICTION)
            return mode
        self._conditions.set(
            _EVICTION,
            Code.POD_NOT_EVICTED,
            "the watchdog reports and cannot evict pods",
            "there is no API server: set node-name, and the permissions in docs/security.md",
            level=LogLevel.WARNING,
        )
        return WatchdogMode.REPORT

    async def perform(
        self, actions: Iterable[Action], settings: Settings, pools: tuple[Pool, ...]
    ) -> None:
        for action in actions:
            match action:
                case Began(usage):
                    self._began(usage)
                case Ended(container, gpu):
                    log.info(
                        Code.MEMORY_WITHIN_GRANT,
                        "container uses no more memory than it was granted",
                        container=container,
                        gpu=gpu,
                    )
                case EndProcess():
                    await self._end_process(action, settings, pools)
                case Evict(usage):
                    await self._evict(usage)

    def _began(self, usage: Usage) -> None:
        self._metrics.memory_exceeded(usage.gpu)
        log.warning(
            Code.MEMORY_EXCEEDED,
            "container uses more memory than it was granted",
            container=usage.container,
            gpu=usage.gpu,
            used=_size(usage.used_bytes),
            granted=_size(usage.granted_bytes),
            processes=len(usage.processes),
        )
        self._record(usage, Code.MEMORY_EXCEEDED, f"uses more memory of {_grant(usage)}")

    async def _end_process(
        self, action: EndProcess, settings: Settings, pools: tuple[Pool, ...]
    ) -> None:
        usage = action.usage
        target = ContainedProcess(action.process, usage.container.id)
        fields = {"container": usage.container, "gpu": usage.gpu, "pid": action.process.pid}
        try:
            if action.step is Step.TERMINATE:
                seconds = self._timing.mps_command
                daemons = daemons_of(pools, settings).values()
                await terminate_client(target, [_control(daemon, seconds) for daemon in daemons])
            else:
                await asyncio.to_thread(kill_process, target)
        except ProcessNotEnded as error:
            self._metrics.watchdog_acted(action.step.value, ok=False)
            log.warning(
                Code.PROCESS_NOT_ENDED,
                f"cannot {action.step.value} a process of a container that uses too much memory",
                **fields,
                reason=error,
            )
            return
        self._metrics.watchdog_acted(action.step.value, ok=True)
        code, event = {
            Step.TERMINATE: (
                Code.PROCESS_TERMINATED,
                "MPS ended the contexts of a process: its container uses too much memory",
            ),
            Step.KILL: (
                Code.PROCESS_KILLED,
                "killed a process: its container uses too much memory",
            ),
        }[action.step]
        log.warning(code, event, **fields)
        self._record(usage, code, f"lost its newest processes: it used more of {_grant(usage)}")

    async def _evict(self, usage: Usage) -> None:
        assert self._api is not None  # `possible` checks it
        try:
            await evict_pod(self._api, _pod(usage.container))
        except ClusterError as error:
            self._metrics.watchdog_acted("evict", ok=False)
            log.warning(
                Code.POD_NOT_EVICTED,
                "cannot evict the pod of a container that uses too much memory, retrying",
                container=usage.container,
                reason=error,
            )
            return
        self._metrics.watchdog_acted("evict", ok=True)
        log.warning(
            Code.POD_EVICTED,
            "evicted a pod: its container uses too much memory",
            container=usage.container,
            gpu=usage.gpu,
        )
        self._record(usage, Code.POD_EVICTED, f"uses more memory of {_grant(usage)}")

    def _record(self, usage: Usage, code: Code, message: str) -> None:
        container = usage.container.name.container
        self._events.add(_pod(usage.container), code, f"container {container} {message}")


def _control(daemon: Daemon, seconds: float) -> ControlClient | NamespaceControl:
    controls = Controls(daemon.pipe, seconds)
    return controls.namespaces if in_namespaces(daemon) else controls.plain


def _pod(container: Container) -> PodReference:
    name = container.name
    return PodReference(name.namespace, name.pod, container.id.pod_uid)


def _grant(usage: Usage) -> str:
    return f"GPU {usage.gpu} than the {_size(usage.granted_bytes)} that it was granted"


def _size(count: int) -> str:
    return describe_mib(count // _MIB)
