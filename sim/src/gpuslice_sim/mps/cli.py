"""The options of `nvidia-cuda-mps-control` that start a daemon, and requests to a daemon.

The program itself is native/mps_control, which sends commands without this module.
"""

from __future__ import annotations

import contextlib
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
_FIRST_BRANCH_WITH_OPTIONS = 555
# What commands of protocol 3 begin with. The native program sends them to a running daemon.
_MODULES = (
    *("server", "namespace", "client", "device", "sm-partition", "feature", "memacct"),
    *("context-share", "-q", "--quit"),
)
_USAGE = """\
CUDA MPS Control for Linux/Unix, simulated.

  Without options, it sends commands from standard input to the daemon. -d starts the daemon.
"""


@dataclass(frozen=True)
class Options:
    mode: str = ""  # "-d", "-f" or "-v"; empty: send commands
    multiuser: bool = False
    static_partitioning: bool = False
    protocol: str | None = None


class UsageError(Exception):
    """The arguments are not valid."""


class StartError(Exception):
    """The daemon does not start. The message, if there is one, is that of the real program."""


def main(arguments: Sequence[str]) -> int:
    pipe = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or DEFAULT_PIPE_DIRECTORY)
    try:
        branch, version, node = _driver()
        if list(arguments) in (["-h"], ["--help"]):
            print(_USAGE)
            return 0
        options = _parse(arguments, branch)
        if not options.mode:
            program = str(node / "bin" / "nvidia-cuda-mps-control")
            os.execv(program, [program])
        if options.mode == "-v":
            print(f"CUDA MPS control daemon of driver {version}")
            return 0
        if options.multiuser and os.geteuid() != 0:
            raise UsageError("Only root user may enable -multiuser-server!")
        config = _config(options, os.environ, node, branch, pipe)
        return _start(options, arguments, config)
    except UsageError as error:
        print(f"{_USAGE}\n{error}" if str(error) else _USAGE)
        return 1
    except StartError as error:
        if str(error):
            print(error)
        return 1
    except SimError as error:
        print(error, file=sys.stderr)
        return 1


def connect(pipe: Path) -> socket.socket:
    """To the socket of root and the owner, if this user may, and otherwise to that of all users."""
    try:
        return _connect(pipe / "control_privileged")
    except OSError:
        return _connect(pipe / "control")


def _connect(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.connect(str(path))
    except OSError:
        connection.close()
        raise
    return connection


def send_request(
    connection: socket.socket, answers: Iterable[bytes], verb: str, **fields: str
) -> tuple[int, str]:
    """Sends a request to the daemon. Returns its status and output. Raises ConnectionError."""
    try:
        connection.sendall(wire.encode(verb, **fields))
        answer = next(iter(answers))
    except (OSError, StopIteration):
        raise ConnectionError("The MPS control daemon closed the connection") from None
    line = wire.decode(answer.rstrip(b"\n"))
    return int(line.fields["status"]), line.fields["text"]


def _parse(arguments: Sequence[str], branch: int) -> Options:
    if branch < _FIRST_BRANCH_WITH_OPTIONS:
        # It knows one argument, and sends commands with any others.
        known = list(arguments) in (["-d"], ["-f"])
        return Options(mode=arguments[0]) if known else Options()
    options = Options()
    words = iter(arguments)
    for word in words:
        match word:
            case "-d" | "-f":
                options = replace(options, mode=max(word, options.mode))
            case "-v" if branch >= 590:
                options = replace(options, mode=word)
            case "-multiuser-server":
                options = replace(options, multiuser=True)
            case "-S" | "--static-partitioning" if branch >= 590:
                options = replace(options, static_partitioning=True)
            case "-p" | "--protocol" if branch >= 615:
                options = replace(options, protocol=next(words, ""))
            case "-m" | "--multiuser" if branch >= 615:
                options = replace(options, multiuser=True)
            case _ if branch >= 615 and word in _MODULES:
                raise StartError("Cannot find MPS control daemon process")
            case _:
                raise UsageError
    return options


def _config(
    options: Options, environment: Mapping[str, str], node: Path, branch: int, pipe: Path
) -> DaemonConfig:
    from gpuslice_sim.mps.control import DaemonConfig

    protocol = environment.get("CUDA_MPS_PROTOCOL_VERSION") or options.protocol
    if branch >= 615 and protocol not in (None, "2", "3"):
        raise UsageError(f"Invalid protocol version: {protocol}")
    log = Path(environment.get("CUDA_MPS_LOG_DIRECTORY") or DEFAULT_LOG_DIRECTORY)
    _make_directories(pipe, log)
    log_directory = None if options.mode == "-f" else log.absolute()
    return DaemonConfig(
        node=node,
        pipe_directory=pipe.absolute(),
        log_directory=log_directory,
        search_path=environment.get("PATH"),
        branch=branch,
        visible_devices=environment.get("CUDA_VISIBLE_DEVICES"),
        multiuser=options.multiuser,
        static_partitioning=options.static_partitioning,
        protocol=3 if branch >= 615 and protocol == "3" else 2,
        defaults=_defaults(environment, branch, log_directory),
    )


def _make_directories(pipe: Path, log: Path) -> None:
    """Without their parents."""
    try:
        pipe.mkdir()
        pipe.chmod(0o777)
    except FileExistsError:
        pass
    except OSError as error:
        raise StartError(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}") from error
    if not pipe.is_dir() or not os.access(pipe, os.W_OK):
        raise StartError(f"Cannot access CUDA_MPS_PIPE_DIRECTORY={pipe}")
    with contextlib.suppress(OSError):
        log.mkdir(0o700)
    if not os.access(log, os.W_OK):
        print(
            f"Warning: Failed writing log files to directory [{log}]. No logs will be available.",
            flush=True,
        )


def _defaults(environment: Mapping[str, str], branch: int, log: Path | None) -> Defaults:
    """The defaults in the environment of a daemon. Invalid values are logged and ignored."""
    from gpuslice_sim.mps.limits import LimitError, parse_pinned_list, scan_percentage
    from gpuslice_sim.mps.logs import control_log
    from gpuslice_sim.mps.scan import Scanner
    from gpuslice_sim.mps.settings import Defaults

    defaults = Defaults()
    name = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
    if text := environment.get(name):
        percentage = scan_percentage(Scanner(text))
        if percentage is None:
            control_log(log).write(f"{name} should be between (0.0, 100.0]")
        else:
            defaults = replace(defaults, percentage=percentage)
    if pinned := environment.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"):
        try:
            defaults = replace(defaults, inherited=parse_pinned_list(pinned, branch))
        except LimitError as error:
            control_log(log).write(f"Ignored: {error}")
    if environment.get("CUDA_MPS_CLIENT_PRIORITY") == "1":
        defaults = replace(defaults, priority=1)
    return defaults


def _start(options: Options, arguments: Sequence[str], config: DaemonConfig) -> int:
    from gpuslice_sim.mps import daemon

    if options.mode == "-f":
        daemon.name_process(arguments)
        try:
            return daemon.run_daemon(config, ready=lambda: None)
        except (OSError, daemon.AlreadyRunningError) as error:
            raise StartError(str(error)) from None
    return _start_in_background(arguments, config)


def _start_in_background(arguments: Sequence[str], config: DaemonConfig) -> int:
    """Returns when the daemon answers. Raises StartError if it does not."""
    from gpuslice_sim.mps import daemon, process

    receiver, sender = os.pipe()
    if os.fork() == 0:
        code = 1
        try:
            process.detach(sender)
            daemon.name_process(arguments)
            code = daemon.run_daemon(config, ready=lambda: _report(sender, _READY))
        except (OSError, daemon.AlreadyRunningError) as error:
            _report(sender, str(error))
        finally:
            os._exit(code)
    os.close(sender)
    with os.fdopen(receiver, "rb") as pipe:
        problem = pipe.read().decode()
    if problem != _READY:
        raise StartError(problem)
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
