"""Starts an MPS control daemon in a mount namespace of its own, with its own /dev/shm.

The kernel follows no links in its pipe directory there. Containers can write to that directory, and
a link would make the daemon, which is privileged, write to a file of the container's choice.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuslice.mps.mounts import MountFlag, enter_new_namespace, mount

DEV_SHM = Path("/dev/shm")  # noqa: S108
# The status of a shell that cannot execute a program.
_NOT_EXECUTED = 126
# Options that a remount would drop. statvfs(3) has the same numbers.
_KEPT = MountFlag.NOSUID | MountFlag.NODEV | MountFlag.NOEXEC


def launch_command(
    shm: Path, pipe: Path, environment: Mapping[str, str], argv: Sequence[str]
) -> list[str]:
    """The command that replaces itself by `argv`. `argv[0]` is the path of the program."""
    variables = [f"{name}={value}" for name, value in environment.items()]
    # Isolated: neither the working directory nor variables decide which modules are loaded.
    python = [sys.executable, "-I", "-m", "gpuslice.mps.daemon_launcher"]
    return [*python, str(shm), str(pipe), *variables, "--", *argv]


def main() -> None:
    shm, pipe, *rest = sys.argv[1:]
    split = rest.index("--")
    try:
        _make_namespace(Path(shm), Path(pipe))
    except OSError as error:
        print(
            f"mounts of the MPS control daemon cannot be made ({error}): run this container "
            "privileged",
            file=sys.stderr,
        )
        sys.exit(_NOT_EXECUTED)
    # Exactly these: the interpreter may have added some of its own.
    environment = dict(variable.split("=", 1) for variable in rest[:split])
    argv = rest[split + 1 :]
    try:
        os.execve(argv[0], argv, environment)  # noqa: S606
    except OSError as error:
        print(f"{argv[0]} cannot be run ({error.strerror})", file=sys.stderr)
        sys.exit(_NOT_EXECUTED)


def _make_namespace(shm: Path, pipe: Path) -> None:
    enter_new_namespace()
    mount(str(shm), DEV_SHM, None, MountFlag.BIND)
    mount(str(pipe), pipe, None, MountFlag.BIND)
    kept = MountFlag(os.statvfs(pipe).f_flag & _KEPT)
    try:
        mount("none", pipe, None, kept | MountFlag.REMOUNT | MountFlag.BIND | MountFlag.NOSYMFOLLOW)
    except OSError as error:
        if error.errno != errno.EINVAL:  # Linux before 5.10 does not have the option
            raise


if __name__ == "__main__":
    main()
