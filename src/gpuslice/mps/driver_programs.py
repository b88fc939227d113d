"""The driver's programs that make and end an MPS control daemon."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Mapping, Sequence
from enum import Enum
from pathlib import Path

from gpuslice.mps.control import (
    PROGRAM,
    ControlProgramMissing,
    MpsSilent,
    MpsUnavailable,
    kill_group,
)
from gpuslice.mps.daemon_paths import DaemonPaths
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# A driver that has to wake up a GPU first takes its time.
_SMI_SECONDS = 60.0
_START_SECONDS = 30.0
_SELINUX = Path("/sys/fs/selinux/enforce")
# What containers may use; a directory made by a privileged container has another label.
_SELINUX_LABEL = "system_u:object_r:container_file_t:s0"


class ComputeMode(Enum):
    DEFAULT = "DEFAULT"
    # For MPS alone: a process that misses it fails instead of running without limits.
    EXCLUSIVE_PROCESS = "EXCLUSIVE_PROCESS"


async def set_compute_modes(gpus: Sequence[str], mode: ComputeMode) -> dict[str, MpsUnavailable]:
    """All at once, as each may take its time. What failed, by GPU."""
    outcomes = await asyncio.gather(*(_set_compute_mode(gpu, mode) for gpu in gpus))
    return {gpu: error for gpu, error in zip(gpus, outcomes, strict=True) if error is not None}


async def start_daemon(place: DaemonPaths, gpus: Sequence[str]) -> None:
    """Returns when it listens. Clients of all users share its one server."""
    # Nothing else: whatever the daemon finds in its environment becomes its clients' default.
    environment = {
        "CUDA_MPS_PIPE_DIRECTORY": str(place.pipe),
        "CUDA_MPS_LOG_DIRECTORY": str(place.log),
        "CUDA_VISIBLE_DEVICES": ",".join(gpus),
    }
    argv = [PROGRAM, "-d", "-multiuser-server"]
    code, text = await _run(argv, environment, _START_SECONDS)
    if code != 0:
        raise MpsUnavailable(
            f"`{' '.join(argv)}` failed ({text or f'exit status {code}'}): "
            f"look at {place.log}/control.log"
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
        "privileged, and try the command on the node to see whether the driver is in order"
    )


def make_directories(place: DaemonPaths) -> None:
    """For the daemon and its marks."""
    for directory in (place.pipe, place.log):
        try:
            for path in (*reversed(directory.parents), directory):
                if not path.exists():
                    path.mkdir()
                    path.chmod(0o755)  # clients of any user find their way, whatever our umask is
        except OSError as error:
            raise MpsUnavailable(
                f"{directory} cannot be made ({error.strerror}): mount the host's MPS root "
                f"writable at {place.root}"
            ) from error
    if _SELINUX.exists():
        try:
            os.setxattr(place.pipe, "security.selinux", _SELINUX_LABEL.encode() + b"\0")
        except OSError as error:
            log.warning(
                "containers may not reach the MPS daemon",
                reason=error.strerror,
                remedy=f"chcon {_SELINUX_LABEL} {place.pipe}",
            )


async def _run(
    argv: Sequence[str], environment: Mapping[str, str] | None, seconds: float
) -> tuple[int, str]:
    """Exit status and output.

    The output goes to memory and not through a pipe, which a daemon would inherit and hold open.
    """
    # The way to it is ours: its own environment need not have one.
    program = shutil.which(argv[0])
    if program is None:
        raise ControlProgramMissing(
            f"{argv[0]} is not on PATH: give this container the driver's programs "
            "(NVIDIA_DRIVER_CAPABILITIES=compute,utility)"
        )
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
            raise MpsSilent(
                f"`{' '.join(argv)}` did not end within {seconds:g} s: look at the driver"
            ) from None
        finally:
            if process.returncode is None:
                kill_group(process)
        output.seek(0)
        return code, " ".join(output.read().decode(errors="replace").split())
