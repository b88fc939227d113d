"""Keeps a link to the configuration that counts on this node, for charts that run a sidecar for it.

The agent needs none: it follows the node's label by itself. Charts written for NVIDIA's plugin
start one nevertheless, and their agent reads the file that the sidecar points it to.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
from dataclasses import dataclass
from pathlib import Path

from gpuslice.agent.api_server import api_server
from gpuslice.agent.node_config import ConfigSource
from gpuslice.cluster.events import Events, NodeEvents, NoEvents
from gpuslice.config.errors import ConfigError
from gpuslice.config.startup_options import StartupOptions
from gpuslice.files.atomic import replace_link
from gpuslice.telemetry.logs import Logger
from gpuslice.telemetry.metrics import NoMetrics

log = Logger(__name__)

# What the link points to where the configuration is empty.
_EMPTY = Path("/dev/null")
# What runs a script under its own name.
_PYTHON = re.compile(r"python[0-9.]*")


@dataclass(frozen=True, slots=True)
class LinkOptions:
    link: Path
    oneshot: bool = False
    # Who is told of a new configuration, by the first word of its command line, with or without
    # its directory; None: nobody.
    process: str | None = "nvidia-device-plugin"
    signal: int = signal.SIGHUP


async def keep_link(options: StartupOptions, link: LinkOptions) -> None:
    """Until SIGTERM or SIGINT, or once. Raises ConfigError if there is nothing to link to."""
    async with contextlib.AsyncExitStack() as stack:
        api = api_server(options)
        events: Events = NoEvents()
        if api is not None:
            stack.push_async_callback(api.close)
            events = NodeEvents(api, options.node_name or "")
        source = ConfigSource(options, api, events, NoMetrics())
        point(link.link, await source.first())
        if link.oneshot:
            return

        def changed() -> None:
            try:
                point(link.link, source.current)
            except ConfigError as error:
                log.error("the link stays as it is", reason=error)
                return
            if link.process is not None:
                tell(link.process, link.signal)

        running = asyncio.create_task(source.run(changed))
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, running.cancel)
        with contextlib.suppress(asyncio.CancelledError):
            await running


def point(link: Path, target: Path | None) -> None:
    """Replaces the link in one step: its reader finds the old one or the new, never none."""
    wanted = target or _EMPTY
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        written = replace_link(link, wanted)
    except OSError as error:
        raise ConfigError(
            "config-file-dst", str(link), f"it cannot be written ({error.strerror})"
        ) from error
    if written:
        log.info("linked the configuration", link=link, to=wanted)


def tell(process: str, number: int, proc: Path = Path("/proc")) -> bool:
    """Whether there was such a process. One that is not there yet will read the new file anyway."""
    for entry in proc.iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid() and _is(entry, process):
            try:
                os.kill(int(entry.name), number)
            except ProcessLookupError:
                continue
            except PermissionError as error:
                log.warning("a process may not be told", process=process, reason=error.strerror)
                continue
            log.info("told of the new configuration", process=process, pid=entry.name)
            return True
    log.info("nobody to tell of the new configuration", process=process)
    return False


def _is(entry: Path, process: str) -> bool:
    """By its own name, or by that of the script if it is Python that runs one.

    No other word counts: an editor has the program's name on its command line, too.
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
    """Charts name a program by its path and start it by its name, and the other way round."""
    if one.is_absolute() and other.is_absolute():
        return one == other
    return one.name == other.name != ""
