"""Keeps the limits of a daemon and of its servers as they were set.

Driver 535 lets everybody set the defaults of a daemon who reaches its socket, that is, every
container. All drivers let root set the limits of a running server, also root in a container.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from gpuslice.codes import Code
from gpuslice.mps.control import ControlClient, MpsUnavailable, parse_percent
from gpuslice.mps.daemon_control import Controls
from gpuslice.mps.daemon_plan import DaemonSpec
from gpuslice.mps.default_limits import (
    max_threads_percent,
    memory_by_number,
    memory_limit_holds,
    set_defaults,
)
from gpuslice.mps.driver_program_run import shortened
from gpuslice.mps.managed_daemon import ManagedDaemon
from gpuslice.mps.namespaces import DEFAULT
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# The control program prints one decimal.
_ROUNDING = 0.05

# Records an event: a message that is the same when it recurs.
Report = Callable[[Code, str], None]


class DefaultGuard:
    def __init__(
        self, managed: ManagedDaemon, controls: Controls, seconds: float, report: Report
    ) -> None:
        self._managed = managed
        self._control = controls.plain
        self._namespaces = controls.namespaces
        self._seconds = seconds
        self._report = report
        # What the daemon does not accept.
        self._rejected: list[str] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await asyncio.sleep(self._seconds)
            if self._managed.is_settled and self._managed.namespaces.exist:
                await self.check_namespace()
            elif self._managed.is_settled:
                await self.check()

    async def check_namespace(self) -> None:
        """Of clients that are in no container's namespace."""
        wanted = self._managed.wanted
        if wanted.namespaces is None:
            return  # the daemon is about to be replaced
        try:
            changed = await self._namespaces.put(DEFAULT, wanted.namespaces.others)
        except MpsUnavailable:
            return  # it is probed and restarted elsewhere
        if changed:
            log.warning(
                Code.MPS_DEFAULT_CHANGED,
                "somebody changed limits of the default namespace of MPS, they are set right",
                daemon=wanted.name,
            )
            self._report(
                Code.MPS_DEFAULT_CHANGED,
                f"somebody changed limits of the default namespace of MPS of {wanted.name}",
            )

    async def check(self) -> None:
        wanted, serves = self._managed.wanted, self._managed.serves
        try:
            wrong = await wrong_defaults(self._control, wanted, serves)
            # New settings may be on their way.
            if not self._managed.is_settled or self._managed.wanted is not wanted:
                return
            if not wrong or wrong == self._rejected:
                return
            await set_defaults(self._control, wanted, serves)
            self._rejected = await wrong_defaults(self._control, wanted, serves)
        except MpsUnavailable:
            return  # it is probed and restarted elsewhere
        if self._rejected:
            return  # nobody changed them: they cannot be set, which has been logged
        log.warning(
            Code.MPS_DEFAULT_CHANGED,
            "somebody changed default limits of the MPS control daemon, they are set right",
            daemon=wanted.name,
            reason="; ".join(wrong),
        )
        self._report(
            Code.MPS_DEFAULT_CHANGED,
            f"somebody changed default limits of the MPS control daemon of {wanted.name}: a "
            "container can do so with drivers before 550",
        )


async def wrong_defaults(
    control: ControlClient, wanted: DaemonSpec, serves: Sequence[str]
) -> list[str]:
    """What differs from the limits that were set, in words. Raises MpsUnavailable."""
    wrong = []
    percent = await control.default_threads_percent()
    if abs(percent - max_threads_percent(wanted)) > _ROUNDING:
        wrong.append(f"{percent:g} % of the threads instead of {max_threads_percent(wanted)} %")
    for number, mib in memory_by_number(wanted, serves):
        text = await control.command(f"get_default_device_pinned_mem_limit {number}")
        is_unlimited = not wanted.limited and not text.strip()
        if not memory_limit_holds(text, mib) and not is_unlimited:
            wrong.append(f"{shortened(text) or 'no limit'} of GPU {number} instead of {mib}M")
    if wanted.limited:
        for server in await control.servers():
            wrong += await _wrong_limits_of_server(control, wanted, serves, server)
    return wrong


async def _wrong_limits_of_server(
    control: ControlClient, wanted: DaemonSpec, serves: Sequence[str], server: str
) -> list[str]:
    """New clients have them. A server that is starting or has ended has none."""
    wrong = []
    percent = parse_percent(await control.command(f"get_active_thread_percentage {server}"))
    if percent is None:
        return []
    if percent > max_threads_percent(wanted) + _ROUNDING:
        wrong.append(f"{percent:g} % of the threads in server {server}")
    for number, mib in memory_by_number(wanted, serves):
        text = await control.command(f"get_device_pinned_mem_limit {server} {number}")
        if not memory_limit_holds(text, mib):
            wrong.append(f"{shortened(text) or 'no limit'} of GPU {number} in server {server}")
    return wrong if server in await control.servers() else []
