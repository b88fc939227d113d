"""Feature discovery as a process: start, reload, stop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from gpuslice.config.errors import ConfigError
from gpuslice.config.settings import Settings
from gpuslice.labels.errors import LabelsError
from gpuslice.labels.look import Look
from gpuslice.labels.publish_loop import LabelLoop
from gpuslice.labels.publishers import Labels, Publisher
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.stack_dump import dump_stacks

log = Logger(__name__)


class LabelService:
    """`load` reads the settings at start and at every SIGHUP; it raises ConfigError."""

    def __init__(
        self, load: Callable[[], Settings], publisher: Callable[[Settings], Publisher]
    ) -> None:
        self._load = load
        self._publisher = publisher
        self._stop = asyncio.Event()
        self._reload = asyncio.Event()

    async def run(self) -> None:
        """Until SIGTERM or SIGINT. Raises LabelsError if not even the first labels get out."""
        self._handle_signals()
        settings = self._load()
        publisher, loop = self._prepare(settings)
        await loop.once()
        if settings.labels.oneshot:
            return
        while await self._keep(loop):
            before = settings, publisher
            try:
                settings = self._load()
                publisher, loop = self._prepare(settings)
            except ConfigError as error:
                log.error("keeping the last good settings", reason=error)
                settings, publisher = before
            if _place(settings) != _place(before[0]):
                await _withdraw(before[1])
            loop.wake()
        if settings.labels.sleep_seconds is not None:  # else nobody was to keep them true anyway
            await _withdraw(publisher)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop.set)
        loop.add_signal_handler(signal.SIGHUP, self._reload.set)
        loop.add_signal_handler(signal.SIGQUIT, dump_stacks)

    def _prepare(self, settings: Settings) -> tuple[Publisher, LabelLoop]:
        look = Look(settings, None if settings.labels.no_timestamp else int(time.time()))

        async def labels() -> Labels:
            return await asyncio.to_thread(look.labels)

        publisher = self._publisher(settings)
        return publisher, LabelLoop(labels, publisher, settings.labels.sleep_seconds)

    async def _keep(self, loop: LabelLoop) -> bool:
        """Returns whether the settings are to be read again, else it is time to stop."""
        tasks = [
            asyncio.create_task(work)
            for work in (loop.go_on(), self._reload.wait(), self._stop.wait())
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()  # a loop that failed takes the process with it
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        self._reload.clear()
        return not self._stop.is_set()


def _place(settings: Settings) -> tuple[bool, str]:
    """Where labels go; what is left at another place would be read on."""
    return settings.labels.use_node_feature_api, settings.labels.output_file


async def _withdraw(publisher: Publisher) -> None:
    try:
        await publisher.withdraw()
    except LabelsError as error:
        log.warning("labels are left behind", reason=error)
