"""Runs the driver's programs that prepare GPUs for MPS and start a control daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.files.untrusted import remove_impostors
from gpuslice.mps.control import (
    PROGRAM,
    DriverProgramMissing,
    MpsTimeout,
    MpsUnavailable,
)
from gpuslice.mps.daemon_launcher import launch_command
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.mps.driver_program_run import (
    Finished,
    ProgramMissing,
    ProgramNotExecuted,
    ProgramTimeout,
    run_driver_program,
)
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A driver that must initialise a GPU is slow.
_SMI_SECONDS = 60.0
_START_SECONDS = 30.0
# Where installations of the driver have their programs, in addition to our own PATH.
_PROGRAM_DIRECTORIES = ("/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
_SELINUX = Path("/sys/fs/selinux/enforce")
# Accessible to containers; a directory that a privileged container creates has another label.
_SELINUX_LABEL = "system_u:object_r:container_file_t:s0"
# What the daemon creates, and of which type each is.
_PIPE_FILES: Mapping[str, Callable[[int], bool]] = {
    "control": stat.S_ISSOCK,
    "control_privileged": stat.S_ISSOCK,
    "control_lock": stat.S_ISREG,
    "log": stat.S_ISFIFO,
    "nvidia-cuda-mps-control.pid": stat.S_ISREG,
}


class ComputeMode(Enum):
    DEFAULT = "DEFAULT"
    # MPS only: a process that does not use MPS fails instead of running without limits.
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


async def set_compute_modes(gpus: Sequence[str], mode: ComputeMode) -> dict[str, MpsUnavailable]:
    """Concurrently, because each may be slow. Returns failures by GPU."""
    outcomes = await asyncio.gather(*(_set_compute_mode(gpu, mode) for gpu in gpus))
    return {gpu: error for gpu, error in zip(gpus, outcomes, strict=True) if error is not None}


async def start_daemon(paths: DaemonPaths, gpus: Sequence[str], options: Sequence[str]) -> None:
    """Returns when it listens."""
    # Nothing else: variables of the daemon become defaults of its clients.
    environment = {
        # The daemon searches its server there.
        "PATH": _search_path(os.environ.get("PATH", "")),
        "CUDA_MPS_PIPE_DIRECTORY": str(paths.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(paths.log),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    argv = [PROGRAM, "-d", *options]
    program = shutil.which(PROGRAM)
    if program is None:
        raise DriverProgramMissing(PROGRAM)
    launch = launch_command(paths.shm, paths.pipe, environment, [program, *argv[1:]])
    finished = await _run(launch, {}, _START_SECONDS, name=" ".join(argv))
    if finished.code != 0:
        raise MpsUnavailable(
            f"`{' '.join(argv)}` failed ({finished.reason}): check {paths.log}/control.log"
        )


def _search_path(own: str) -> str:
    """Absolute directories only: the daemon has another working directory."""
    directories = [*own.split(os.pathsep), *_PROGRAM_DIRECTORIES]
    return os.pathsep.join(dict.fromkeys(one for one in directories if one.startswith("/")))


async def _set_compute_mode(gpu: str, mode: ComputeMode) -> MpsUnavailable | None:
    argv = ["nvidia-smi", "-i", gpu, "-c", mode.value]
    try:
        finished = await _run(argv, None, _SMI_SECONDS)
    except MpsUnavailable as error:
        return error
    if finished.code == 0:
        return None
    return MpsUnavailable(
        f"`{' '.join(argv)}` failed ({finished.reason}): run this container "
        "privileged, and run the command on the node to check the driver"
    )


def make_directories(paths: DaemonPaths) -> None:
    """Creates the directories of a daemon. Blocks."""
    for directory in (paths.pipe, paths.log):
        try:
            for path in (*reversed(directory.parents), directory):
                if not path.exists():
                    path.mkdir()
                    path.chmod(0o755)  # for clients of any user, whatever our umask is
        except OSError as error:
            raise MpsUnavailable(
                f"{directory} cannot be created ({error.strerror}): mount the host's MPS root at "
                f"{paths.root}, writable"
            ) from error
    _remove_impostors(paths)
    if _SELINUX.exists():
        try:
            os.setxattr(paths.pipe, "security.selinux", _SELINUX_LABEL.encode() + b"\0")
        except OSError as error:
            log.warning(
                Code.SELINUX_LABEL_FAILED,
                "containers cannot reach the MPS control daemon",
                reason=error.strerror,
                remedy=f"chcon {_SELINUX_LABEL} {paths.pipe}",
            )


def _remove_impostors(paths: DaemonPaths) -> None:
    """Containers can write to the pipe directory: what they put there must not stop the daemon."""
    try:
        removed = remove_impostors(paths.pipe, _PIPE_FILES)
    except OSError as error:
        raise MpsUnavailable(
            f"{paths.pipe} has entries that keep the MPS control daemon from starting, and they "
            f"cannot be removed ({error}): remove them"
        ) from error
    if removed:
        log.warning(
            Code.MPS_FILES_REMOVED,
            "a container put something else in place of files of the MPS control daemon",
            daemon=paths.name,
            directory=paths.pipe,
            removed=",".join(removed),
        )


async def _run(
    argv: Sequence[str], environment: Mapping[str, str] | None, seconds: float, name: str = ""
) -> Finished:
    """`name`: the command in messages, if it is another than `argv`."""
    try:
        return await run_driver_program(argv, seconds, env=environment)
    except ProgramMissing as error:
        raise DriverProgramMissing(argv[0]) from error
    except ProgramNotExecuted as error:
        raise MpsUnavailable(str(error)) from error
    except ProgramTimeout:
        raise MpsTimeout(
            f"`{name or ' '.join(argv)}` did not exit within {seconds:g} s: check the driver"
        ) from None
