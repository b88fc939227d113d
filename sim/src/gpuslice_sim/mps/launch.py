"""Runs the control daemon of a simulated node, for tests and demos."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from gpuslice_sim.mps import cli
from gpuslice_sim.process import PATIENCE_SECONDS

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

    from gpuslice_sim.node import SimNode


class MpsError(Exception):
    """The daemon did not start, or rejected a command."""


class MpsDaemon:
    """`nvidia-cuda-mps-control -d` of a node.

    Its environment contains only the two directories and `env`, as if one of NVIDIA's programs
    had started it.
    """

    def __init__(
        self,
        node: SimNode,
        pipe_directory: Path,
        log_directory: Path,
        *,
        env: Mapping[str, str] | None = None,
        multiuser: bool = False,
        static_partitioning: bool = False,
    ) -> None:
        self.pipe_directory = pipe_directory
        self.log_directory = log_directory
        self.pid = 0
        self._program = node.bin / "nvidia-cuda-mps-control"
        self._record = node.bin.parent / "state" / "mps" / "commands.log"
        self._env = dict(env or {})
        self._options = ["-multiuser-server"] * multiuser + ["-S"] * static_partitioning

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def start(self) -> None:
        done = self.run("-d", *self._options)
        if done.returncode:
            raise MpsError(f"nvidia-cuda-mps-control -d: {(done.stdout + done.stderr).strip()}")
        [self.pid] = daemons_at(self.pipe_directory)

    def stop(self) -> None:
        """Stops the daemon and its server. Does nothing if it has exited."""
        if not is_running(self.pid):
            return
        with contextlib.suppress(MpsError):
            self.command("quit -t 0")  # also if it has clients
        wait_until_gone(self.pid)

    def kill(self) -> None:
        """Simulates a crash: sockets and files remain."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until_gone(self.pid)

    def command(self, text: str) -> str:
        """The output of a control command, without the final newline."""
        return self._request("command", text)

    def inject_fault(self, uuid: str) -> None:
        """Causes a fatal fault on a GPU, like a kernel of one of its clients."""
        self._request("fault", uuid)

    def server_pid(self) -> int | None:
        pids = self.command("get_server_list").split()
        return int(pids[0]) if pids else None

    def env(self) -> dict[str, str]:
        """The variables that clients of this daemon need."""
        return {"CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory)}

    def commands(self) -> list[str]:
        """Every command that daemons of this pipe directory received, in order."""
        if not self._record.exists():
            return []
        rows = (line.split("\t", 2) for line in self._record.read_text().splitlines())
        return [text for pipe, _, text in rows if pipe == str(self.pipe_directory.absolute())]

    def run(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Runs the program in the environment of the daemon."""
        directories = {
            "CUDA_MPS_PIPE_DIRECTORY": str(self.pipe_directory),
            "CUDA_MPS_LOG_DIRECTORY": str(self.log_directory),
        }
        return subprocess.run(
            [self._program, *arguments],
            env=directories | self._env,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE_SECONDS,
        )

    def _request(self, verb: str, text: str) -> str:
        """Again, if the daemon dropped it in favour of another program."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while True:
            try:
                status, output = self._send(verb, text)
                break
            except ConnectionError as error:
                if time.monotonic() > deadline or not is_running(self.pid):
                    raise MpsError(f"{text}: {error}") from error
                time.sleep(0.01)
        if status:
            raise MpsError(f"{text}: {output}")
        return output

    def _send(self, verb: str, text: str) -> tuple[int, str]:
        field = {"command": "text", "fault": "device"}[verb]
        try:
            connection = cli.connect(self.pipe_directory)
        except OSError as error:
            raise MpsError(f"no MPS daemon answers at {self.pipe_directory}: {error}") from error
        with connection, connection.makefile("rb") as answers:
            return cli.send_request(connection, answers, verb, **{field: text})


def daemons_at(pipe_directory: Path) -> list[int]:
    """Process ids of the control daemons of a pipe directory. Old drivers write no pid file."""
    return [
        int(proc.name) for proc in Path("/proc").glob("[0-9]*") if _serves(proc, pipe_directory)
    ]


def _serves(proc: Path, pipe: Path) -> bool:
    try:
        words = (proc / "cmdline").read_bytes().replace(b"\0", b" ").split()
        if not words or not words[0].endswith(b"nvidia-cuda-mps-control"):
            return False
        variables = (proc / "environ").read_bytes().decode().split("\0")
        named = dict(variable.partition("=")[::2] for variable in variables)
        own = named.get("CUDA_MPS_PIPE_DIRECTORY", "")
        same = Path(f"{proc}/root{own}").samefile(pipe)
    except OSError:  # it has ended meanwhile
        return False
    # Programs that send a command have no such argument.
    return same and bool({b"-d", b"-f"}.intersection(words)) and is_running(int(proc.name))


def is_running(pid: int) -> bool:
    """A zombie does not run, even if its status was not read."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")


def running_process(pid_file: Path) -> int | None:
    """The process that the file names, if it runs. A daemon that quits removes its file."""
    try:
        pid = int(pid_file.read_text())
    except (OSError, ValueError):
        return None
    return pid if is_running(pid) else None


def kill(pid: int) -> None:
    """Does nothing if the process has exited."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def wait_until_gone(pid: int) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while is_running(pid):
        if time.monotonic() > deadline:
            raise MpsError(f"process {pid} does not exit")
        time.sleep(0.005)
