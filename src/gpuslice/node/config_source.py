"""Which configuration applies to this node, and when it changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.node import watch_label
from gpuslice.codes import Code
from gpuslice.config.config_choice import choose_config, read_config_bytes
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.files.directory_watch import watch_directory
from gpuslice.node.snapshot import Problem
from gpuslice.node.state import NodeState
from gpuslice.node.time_limit import TimeLimit
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import Metrics

log = Logger(__name__)

# A file that changes is read again after this time: the first read may see half of an edit.
_SETTLE_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class _Choice:
    """A file (None: the empty configuration) and its content."""

    path: Path | None
    content: bytes


class ConfigSource:
    """Watches the node's label and the files that it can select.

    Call `first` once, then `run` for the rest of the program.
    """

    def __init__(
        self,
        options: StartupOptions,
        api: ApiServer | None,
        state: NodeState,
        metrics: Metrics,
        timing: Timing,
    ) -> None:
        self._options = options
        self._api = api if options.config_dir is not None and options.node_name else None
        self._state = state
        self._metrics = metrics
        self._timing = timing
        self._label: str | None = None
        self._choice = _Choice(None, b"")
        self._problem = ""
        self._changed = asyncio.Event()
        self._reading = TimeLimit(timing.config_check)

    @property
    def current(self) -> Path | None:
        """The file to read. None: there is none, and every setting has its default."""
        return self._choice.path

    async def first(self) -> Path | None:
        """Raises ConfigError: at the start there is no earlier configuration to keep."""
        if self._api is None:
            self._choice = await self._read()
        else:
            self._choice = await self._first_by_label(self._api)
        log.info(
            Code.CONFIGURATION_SELECTED,
            "selected configuration",
            file=self._choice.path or "none",
            node_label=self._label or "none",
        )
        return self._choice.path

    async def run(self, changed: Callable[[], None]) -> None:
        """Calls `changed` when `current` has new content, and when a problem with it is solved.

        A problem is reported once and leaves the last good configuration in force.
        """
        resync = self._timing.directory_resync
        async with asyncio.TaskGroup() as tasks:
            if self._api is not None:
                tasks.create_task(self._follow_label(self._api))
            if (directory := self._options.config_dir) is not None:
                tasks.create_task(
                    watch_directory(directory, self._changed.set, resync_seconds=resync)
                )
            elif (file := self._options.config_file) is not None:
                tasks.create_task(
                    watch_directory(
                        file.parent, self._changed.set, only=file.name, resync_seconds=resync
                    )
                )
            # Changes since `first` cause no event any more.
            self._changed.set()
            while await self._changed.wait():
                self._changed.clear()
                await self._select(changed)

    async def _select(self, changed: Callable[[], None]) -> None:
        try:
            choice = await self._settled()
        except ConfigError as error:
            self._report(str(error))
            return
        recovered, self._problem = bool(self._problem), ""
        self._state.clear_config_problem(Code.CONFIGURATION_NOT_FOUND)
        before, self._choice = self._choice, choice
        if choice != before or recovered:
            log.info(
                Code.CONFIGURATION_CHANGED,
                "configuration changed",
                file=choice.path or "none",
                node_label=self._label or "none",
            )
            changed()

    async def _settled(self) -> _Choice:
        """Editors truncate a file before they write it, and an empty file is valid."""
        choice = await self._read()
        if choice.content == self._choice.content:
            return choice
        while True:
            await asyncio.sleep(_SETTLE_SECONDS)
            again = await self._read()
            if again == choice:
                return choice
            choice = again

    def _report(self, problem: str) -> None:
        if problem == self._problem:
            return
        self._problem = problem
        self._metrics.reloaded(False)
        self._state.set_config_problem(Problem(Code.CONFIGURATION_NOT_FOUND, problem))

    async def _first_by_label(self, api: ApiServer) -> _Choice:
        labels = watch_label(api, self._options.node_name or "", self._options.node_label)
        async with contextlib.aclosing(labels):
            value = asyncio.ensure_future(anext(labels))
            try:
                await asyncio.wait([value], timeout=self._timing.node_label)
                if not value.done():
                    try:
                        choice = await self._read()
                    except ConfigError as error:
                        log.warning(
                            Code.WAITING_FOR_API_SERVER, "waiting for the API server", reason=error
                        )
                    else:
                        log.warning(
                            Code.NODE_LABEL_UNKNOWN,
                            "cannot read the node's label, starting without it",
                            file=choice.path or "none",
                        )
                        return choice
                self._label = await value
            finally:
                value.cancel()
                await asyncio.wait([value])
        return await self._read()

    async def _follow_label(self, api: ApiServer) -> None:
        labels = watch_label(api, self._options.node_name or "", self._options.node_label)
        async with contextlib.aclosing(labels):
            async for value in labels:
                self._label = value
                self._changed.set()

    async def _read(self) -> _Choice:
        """Raises ConfigError. The file may be on a file system that does not answer."""
        try:
            return await self._reading.run(self._read_now)
        except ConfigError:
            raise
        except Exception as error:
            source = self._options.config_dir or self._options.config_file or ""
            reason = f"it cannot be read ({type(error).__name__}: {error})"
            raise ConfigError("config-file", str(source), reason) from error

    def _read_now(self) -> _Choice:
        path = self._path()
        return _Choice(path, b"" if path is None else read_config_bytes(path))

    def _path(self) -> Path | None:
        options = self._options
        if options.config_dir is None:
            return options.config_file
        name = choose_config(
            _available(options.config_dir),
            self._label or None,
            options.default_config,
            options.fallbacks,
        )
        return None if name is None else options.config_dir / name


def _available(directory: Path) -> list[str]:
    """Names that begin with two dots belong to the kubelet."""
    try:
        return sorted(
            entry.name
            for entry in directory.iterdir()
            if entry.is_file() and not entry.name.startswith("..")
        )
    except OSError as error:
        remedy = f"it cannot be read ({error.strerror}); mount the ConfigMap of configurations"
        raise ConfigError("config-file-srcdir", str(directory), remedy) from error
