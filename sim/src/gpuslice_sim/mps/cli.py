"""The options of `nvidia-cuda-mps-control` that start a daemon, and requests to a daemon.

The program itself is native/mps_control, which sends commands without this module.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice_sim.errors import SimError
from gpuslice_sim.mps import wire

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpuslice_sim.mps.control import DaemonConfig
    from gpuslice_sim.mps.settings import Defaults

DEFAULT_PIPE_DIRECTORY = "/tmp/nvidia-mps"
DEFAULT_LOG_DIRECTORY = "/var/log/nvidia-mps"

_READY = "ready"
_USAGE = """\
usage: nvidia-cuda-mps-control -d | -f [-multiuser-server] [-S | --static-partitioning] [-p 2]
       nvidia-cuda-mps-control -v
       nvidia-cuda-mps-control [command]      without a command: one command per line from stdin"""


@dataclass(frozen=True)
class Options:
    mode: str = ""  # "-d", "-f" or "-v"
    multiuser: bool = False
    static_partitioning: bool = False
    protocol: str | None = None


class UsageError(Exception):
    """The arguments are not valid."""


def main(arguments: Sequence[str]) -> int:
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY)
    try:
        branch, version, node = _driver()
        options = _parse(arguments, branch)
        if options.mode == "-v":
            print(f"CUDA MPS control daemon of driver {version}")
            return 0
        return _start(options, _config(options, os.environ, node, branch, pipe))
    except (UsageError, SimError) as error:
        print(error, file=sys.stderr)
        return 1


def connect(pipe: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(pipe / "control"))
    except OSError:
        connection.close()
        raise
    return connection


def send_request(
    connection: socket.socket, answers: Iterable[bytes], verb: str, **fields: str
) -> tuple[int, str]:
    """Sends a request to the daemon. Returns its status and output."""
    try:
        connection.sendall(wire.encode(verb, **fields))
        answer = next(iter(answers))
    except (OSError, StopIteration):
        return 1, "The MPS control daemon closed the connection"
    line = wire.decode(answer.rstrip(b"\n"))
    return int(line.fields["status"]), line.fields["text"]


def _parse(arguments: Sequence[str], branch: int) -> Options:
    options = Options()
    words = iter(arguments)
    for word in words:
        match word:
            case "-d" | "-f" | "-v":
                options = replace(options, mode=word)
            case "-multiuser-server" if branch >= 555:
                options = replace(options, multiuser=True)
            case "-S" | "--static-partitioning" if branch >= 590:
                options = replace(options, static_partitioning=True)
            case "-p" if branch >= 615:
                options = replace(options, protocol=next(words, ""))
            case "-h" | "--help":
                raise UsageError(_USAGE)
            case _:
                raise UsageError(f"Unknown option {word!r} for driver branch {branch}\n{_USAGE}")
    if not options.mode:
        raise UsageError(f"-d or -f is missing\n{_USAGE}")
    return options


def _config(
    options: Options, environment: Mapping[str, str], node: Path, branch: int, pipe: Path
) -> DaemonConfig:
    from gpuslice_sim.mps.control import DaemonConfig

    protocol = environment.get("CUDA_MPS_PROTOCOL_VERSION") or options.protocol
    if branch >= 615 and protocol not in (None, "2"):
        raise UsageError(
            f"MPS protocol version {protocol!r} is not simulated: "
            "unset CUDA_MPS_PROTOCOL_VERSION and use -p 2"
        )
    if options.multiuser and os.geteuid() != 0:
        raise UsageError("-multiuser-server requires root")
    log = Path(environment.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOG_DIRECTORY)
    for directory in (pipe, log):
        try:
            directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot create directory {directory}: {error.strerror}") from None
    return DaemonConfig(
        node=node,
        pipe_directory=pipe.absolute(),
        log_directory=log.absolute(),
        branch=branch,
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        multiuser=options.multiuser,
        static_partitioning=options.static_partitioning,
        defaults=_defaults(environment, branch, log),
    )


def _defaults(environment: Mapping[str, str], branch: int, log: Path) -> Defaults:
    """The defaults in the environment of a daemon. Invalid values are logged and ignored."""
    from gpuslice_sim.mps.limits import LimitError, parse_percentage, parse_pinned_list
    from gpuslice_sim.mps.logs import control_log
    from gpuslice_sim.mps.settings import Defaults

    defaults = Defaults()
    if percentage := environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"):
        try:
            defaults = replace(defaults, percentage=parse_percentage(percentage))
        except LimitError as error:
            control_log(log).write(f"Ignored: {error}")
    if pinned := environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        try:
            for device, limit in parse_pinned_list(pinned, branch):
                defaults = defaults.with_pinned(device, limit)
        except LimitError as error:
            control_log(log).write(f"Ignored: {error}")
    if environment.get("CUDA_MPS_CLIENT_PRIORITY") == "1":
        defaults = replace(defaults, priority=1)
    return defaults


def _start(options: Options, config: DaemonConfig) -> int:
    from gpuslice_sim.mps import daemon

    if options.mode == "-f":
        daemon.name_process("-f")
        try:
            return daemon.run_daemon(config, ready=lambda: None)
        except (OSError, daemon.AlreadyRunningError) as error:
            raise UsageError(str(error)) from None
    return _start_in_background(config)


def _start_in_background(config: DaemonConfig) -> int:
    """Returns when the daemon answers. Raises UsageError if it does not."""
    from gpuslice_sim.mps import daemon, process

    receiver, sender = os.pipe()
    if os.fork() == 0:
        code = 1
        try:
            process.detach(sender)
            daemon.name_process("-d")
            code = daemon.run_daemon(config, ready=lambda: _report(sender, _READY))
        except (OSError, daemon.AlreadyRunningError) as error:
            _report(sender, str(error))
        finally:
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        problem = pipe.read().decode()
    if problem != _READY:
        raise UsageError(problem or "The MPS control daemon exited while it started")
    return 0


def _report(sender: int, text: str) -> None:
    os.write(sender, text.encode())
    os.close(sender)


def _driver() -> tuple[int, str, Path]:
    """Branch and version of the simulated driver, and the directory of its node."""
    from gpuslice_sim.mps.gpu_usage import GpuUsage, node_directory

    node = node_directory()
    usage = GpuUsage(node)
    values = usage.values()
    usage.close()
    return int(values["driver.branch"]), values["driver.version"], node
