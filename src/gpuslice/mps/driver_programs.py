"""Runs the driver's programs that prepare GPUs for MPS and start a control daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from gpuslice.codes import Code
from gpuslice.mps.control import (
    PROGRAM,
    DriverProgramMissing,
    MpsTimeout,
    MpsUnavailable,
    kill_group,
)
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A driver that must initialise a GPU is slow.
_SMI_SECONDS = 60.0
_START_SECONDS = 30.0
_SELINUX = Path("/sys/fs/selinux/enforce")
# Accessible to containers; a directory that a privileged container creates has another label.
_SELINUX_LABEL = "system_u:object_r:container_file_t:s0"


class ComputeMode(Enum):
    DEFAULT = "DEFAULT"
    # MPS only: a process that does not use MPS fails instead of running without limits.
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


async def set_compute_modes(gpus: Sequence[str], mode: ComputeMode) -> dict[str, MpsUnavailable]:
    """Concurrently, because each may be slow. Returns failures by GPU."""
    outcomes = await asyncio.gather(*(_set_compute_mode(gpu, mode) for gpu in gpus))
    return {gpu: error for gpu, error in zip(gpus, outcomes, strict=True) if error is not None}


async def start_daemon(paths: DaemonPaths, gpus: Sequence[str]) -> None:
    """Returns when it listens. Clients of all users share its one server."""
    # Nothing else: variables of the daemon become defaults of its clients.
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(paths.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(paths.log),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    argv = [PROGRAM, "-d", "-multiuser-server"]
    code, text = await _run(argv, environment, _START_SECONDS)
    if code != 0:
        raise MpsUnavailable(
            f"`{' '.join(argv)}` failed ({text or f'exit status {code}'}): "
            f"check {paths.log}/control.log"
        )


async def _set_compute_mode(gpu: str, mode: ComputeMode) -> MpsUnavailable | None:
    argv = ["nvidia-smi", "-i", gpu, "-c", mode.value]
    try:
        code, text = await _run(argv, None, _SMI_SECONDS)
    except MpsUnavailable as error:
        return error
    if code == 0:
        return None
    return MpsUnavailable(
        f"`{' '.join(argv)}` failed ({text or f'exit status {code}'}): run this container "
        "privileged, and run the command on the node to check the driver"
    )


def make_directories(paths: DaemonPaths) -> None:
    """Creates the directories of a daemon."""
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


async def _run(
    argv: Sequence[str], environment: Mapping[str, str] | None, seconds: float
) -> tuple[int, str]:
    """Returns exit status and output.

    The output goes to memory and not through a pipe, which a daemon would inherit and keep open.
    """
    # By our own PATH: the environment of the program may have none.
    program = shutil.which(argv[0])
    if program is None:
        raise DriverProgramMissing(argv[0])
    with os.fdopen(os.memfd_create(argv[0]), "r+b") as output:
        try:
            process = await asyncio.create_subprocess_exec(
                program,
                *argv[1:],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=asyncio.subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise MpsUnavailable(f"{program} cannot be run ({error.strerror})") from error
        try:
            async with asyncio.timeout(seconds):
                code = await process.wait()
        except TimeoutError:
            raise MpsTimeout(
                f"`{' '.join(argv)}` did not exit within {seconds:g} s: check the driver"
            ) from None
        finally:
            if process.returncode is None:
                kill_group(process)
        output.seek(0)
        return code, " ".join(output.read().decode(errors="replace").split())
