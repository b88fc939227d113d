"""Runs a program with the /dev, /proc and /sys files of a node.

NVIDIA's programs have fixed paths: /dev/nvidia*, /proc/driver/nvidia*, /sys/bus/pci/devices. This
module mounts the files of the node there, in a new mount namespace, and then executes the program
in the same process, so that signals and exit status are those of the program. The rest of the
machine does not change.

    python -m gpuslice_sim.namespace DIR [TARGET=SOURCE ...] -- COMMAND...
"""

from __future__ import annotations

import ctypes
import os
import stat
import sys
import tempfile
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path

from gpuslice_sim import driver_root
from gpuslice_sim.errors import SimError
from gpuslice_sim.node import SimNode

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 2, 0x1000, 0x2000, 0x4000, 1 << 18


def run(node: SimNode, argv: Sequence[str], binds: Mapping[str, Path]) -> None:
    """Executes `argv` in this process. Returns only if it fails. See `enter` for `binds`."""
    if os.geteuid() != 0:
        raise SimError("a mount namespace requires root: use sudo, or a container as root")
    if not argv:
        raise SimError("no command: write it after --")
    enter(node, binds)
    try:
        os.execvpe(argv[0], list(argv), node.env())
    except OSError as error:
        raise SimError(f"cannot run {argv[0]}: {error.strerror}") from error


def enter(node: SimNode, binds: Mapping[str, Path] | None = None) -> None:
    """Moves this process into a new mount namespace with the files of the node.

    `binds` are more directories to mount there: path -> directory of the machine. The path does not
    have to exist on the machine, and is not created there. A file or socket can be mounted into a
    directory that exists.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise SimError(f"cannot create a mount namespace: {os.strerror(ctypes.get_errno())}")
    _mount(None, Path("/"), None, _MS_REC | _MS_PRIVATE)
    # A new /dev with everything of the old one and the devices of the node. The old one stays.
    _replace(Path("/dev"), node, without="nvidia*")
    driver_root.make_device_nodes(Path("/dev"), driver_root.device_nodes(node.state.values()))
    _mount(node.root / "proc" / "driver", Path("/proc/driver"), None, _MS_BIND)
    _bind_pci(node)
    for target, source in sorted((binds or {}).items()):
        is_file = source.exists() and not source.is_dir()
        if not is_file:
            source.mkdir(parents=True, exist_ok=True)
        # Opened first: a new root may hide it.
        descriptor = os.open(source, os.O_PATH)
        place = _existing_file(Path(target)) if is_file else _existing(Path(target), node)
        _mount(Path(f"/proc/self/fd/{descriptor}"), place, None, _MS_BIND)
        os.close(descriptor)


def _existing_file(target: Path) -> Path:
    """As container runtimes do it: a file that is missing is created in its directory."""
    if not target.exists():
        target.touch()
    return target


def _existing(target: Path, node: SimNode) -> Path:
    """The directory; if it is missing, it is created in a private copy of its nearest parent."""
    target = target.resolve()
    if target.is_dir():
        return target
    ancestor = next(parent for parent in target.parents if parent.is_dir())
    _replace(ancestor, node)
    target.mkdir(parents=True)
    return target


def _replace(directory: Path, node: SimNode, without: str = "") -> None:
    """Mounts a writable directory over it with the same entries, except those of `without`."""
    # A new root stays where it is mounted. The directory is removed with the node.
    fresh = Path(tempfile.mkdtemp(dir=node.directory))
    _mount(None, fresh, "tmpfs", _MS_NOSUID, "mode=755")
    for old in directory.iterdir():
        if not fnmatch(old.name, without):
            _mirror(old, fresh / old.name)
    if directory == Path("/"):
        os.chroot(fresh)
        os.chdir("/")
    else:
        _mount(fresh, directory, None, _MS_MOVE)
        fresh.rmdir()


def _mirror(old: Path, new: Path) -> None:
    mode = old.lstat().st_mode
    if stat.S_ISLNK(mode):
        new.symlink_to(old.readlink())
        return
    if stat.S_ISDIR(mode):
        new.mkdir()
    else:
        new.touch()
    _mount(old, new, None, _MS_BIND | _MS_REC)


def _bind_pci(node: SimNode) -> None:
    devices = Path("/sys/bus/pci/devices")
    if devices.is_dir():
        _mount(node.root / "sys" / "bus" / "pci" / "devices", devices, None, _MS_BIND)
    else:
        # A machine without PCI: sysfs has no such directory, so mount the /sys/bus of the node.
        _mount(node.root / "sys" / "bus", Path("/sys/bus"), None, _MS_BIND)


def _mount(
    source: Path | None, target: Path, kind: str | None, flags: int, options: str = ""
) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    done = libc.mount(
        os.fsencode(source or kind or "none"),
        os.fsencode(target),
        kind.encode() if kind else None,
        ctypes.c_ulong(flags),
        options.encode() or None,
    )
    if done != 0:
        raise SimError(f"cannot mount {target}: {os.strerror(ctypes.get_errno())}")


def main() -> None:
    words = sys.argv[1:]
    if "--" not in words or not words[0] or words[0] == "--":
        sys.exit("usage: python -m gpuslice_sim.namespace DIR [TARGET=SOURCE ...] -- COMMAND...")
    split = words.index("--")
    directory, *pairs = words[:split]
    try:
        run(SimNode.open(Path(directory)), words[split + 1 :], parse_binds(pairs))
    except SimError as error:
        sys.exit(f"gpuslice-sim: {error}")


def parse_binds(pairs: Sequence[str]) -> dict[str, Path]:
    binds = {}
    for pair in pairs:
        target, equals, source = pair.partition("=")
        if not (equals and source and target.startswith("/")):
            raise SimError(f"{pair!r} is not valid: use /path/in/the/namespace=DIRECTORY")
        binds[target] = Path(source)
    return binds


if __name__ == "__main__":
    main()
