"""`config-manager`: a sidecar that links the node's configuration and signals the device plugin.

Our agent needs none: it watches the node's label itself. Charts for NVIDIA's plugin start one
nevertheless, and their device plugin reads the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from gpuslice.cluster.events import Events, NodeEvents, NoEvents
from gpuslice.codes import Code
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.config.timing import Timing
from gpuslice.files.atomic import replace_link
from gpuslice.node.change_log import log_changes
from gpuslice.node.config_source import ConfigSource
from gpuslice.node.event_recorder import EventRecorder
from gpuslice.node.state import NodeState
from gpuslice.programs.api_server import connect_if_needed
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import NoMetrics

log = Logger(__name__)

# The target of the link if the configuration is empty.
_EMPTY = Path("/dev/null")
# Interpreters, which run a script under its own name.
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    link: Path
    oneshot: bool = False
    # The process to signal, by the first word of its command line, with or without its directory;
    # None: none.
    process: str | None = "nvidia-device-plugin"
    signal: int = signal.SIGHUP


async def keep_link(options: StartupOptions, link: LinkOptions, timing: Timing) -> None:
    """Runs until SIGTERM or SIGINT, or once. Raises ConfigError if there is no configuration."""
    keeping = asyncio.create_task(_keep_link(options, link, timing))
    loop = asyncio.get_running_loop()
    # First: it may wait for the API server. As the first process of a container, it would ignore
    # signals without a handler.
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, keeping.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await keeping


async def _keep_link(options: StartupOptions, link: LinkOptions, timing: Timing) -> None:
    async with contextlib.AsyncExitStack() as stack:
        api = connect_if_needed(options)
        events: Events = NoEvents()
        if api is not None:
            stack.push_async_callback(api.close)
            events = NodeEvents(api, options.node_name or "")
        state, recorder = NodeState(), EventRecorder(events)
        state.subscribe(log_changes)
        state.subscribe(recorder.read)
        source = ConfigSource(options, api, state, NoMetrics(), timing)
        set_link(link.link, await source.first())
        if link.oneshot:
            return

        def changed() -> None:
            try:
                set_link(link.link, source.current)
                if link.process is not None:
                    send_signal(link.process, link.signal)
            except Exception as error:  # noqa: BLE001 (the link stays as it is)
                log.error(Code.LINK_NOT_WRITTEN, "cannot update the link", reason=error)

        await asyncio.gather(source.run(changed), recorder.run())


def set_link(link: Path, target: Path | None) -> None:
    """Replaces the link atomically: a reader always finds one."""
    wanted = target or _EMPTY
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        written = replace_link(link, wanted)
    except OSError as error:
        raise ConfigError(
            "config-file-dst", str(link), f"it cannot be written ({error.strerror})"
        ) from error
    if written:
        log.info(Code.LINK_WRITTEN, "linked the configuration", link=link, to=wanted)


def send_signal(process: str, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether there is such a process. One that starts later reads the new file anyway."""
    for entry in proc.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and _is(entry, process):
            try:
                os.kill(int(entry.name), number)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                log.warning(
                    Code.SIGNAL_FAILED,
                    "cannot signal the process",
                    process=process,
                    reason=error.strerror,
                )
                continue
            log.info(Code.SIGNAL_SENT, "signalled the process", process=process, pid=entry.name)
            return True
    log.info(Code.SIGNAL_FAILED, "no process to signal", process=process)
    return False


def _is(entry: Path, process: str) -> bool:
    """By its own name, or by the name of the script if it is a Python interpreter.

    Other words of the command line do not count: an editor may have the name there, too.
    """
    try:
        words = (entry / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
    except OSError:
        return False
    program, *rest = map(os.fsdecode, words)
    if _PYTHON.fullmatch(Path(program).name):
        program = next((word for word in rest if not word.startswith("-")), program)
    return _alike(Path(program), Path(process))


def _alike(one: Path, other: Path) -> bool:
    """Charts name a program by its path and start it by its name, or the other way round."""
    if one.is_absolute() and other.is_absolute():
        return one == other
    return one.name == other.name != ""
