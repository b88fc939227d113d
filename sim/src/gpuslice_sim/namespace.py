"""Runs a program where a node's kernel view is in place.

NVIDIA's programs have fixed paths: /dev/nvidia*, /proc/driver/nvidia*, /sys/bus/pci/devices. This
module puts the node's files there in a mount namespace of its own and then becomes the program, so
signals and the exit status are the program's.

    python -m gpuslice_sim.namespace DIR [--device-plugins PATH] -- COMMAND...
"""

from __future__ import annotations

import argparse
import ctypes
import os
import stat
import sys
import tempfile
from pathlib import Path

from gpuslice_sim import driver_root
from gpuslice_sim.errors import SimError
from gpuslice_sim.node import SimNode

_CLONE_NEWNS = 0x20000
_MS_NOSUID, _MS_BIND, _MS_MOVE, _MS_REC, _MS_PRIVATE = 2, 0x1000, 0x2000, 0x4000, 1 << 18
_KUBELET_PLUGINS = Path("/var/lib/kubelet/device-plugins")


def run(node: SimNode, argv: list[str], device_plugins: Path | None = None) -> None:
    """Replaces this process by `argv`; returns only by raising."""
    if os.geteuid() != 0:
        raise SimError("a mount namespace needs root: run this with sudo or in a container as root")
    if not argv:
        raise SimError("no command given: write it after --")
    enter(node, device_plugins)
    try:
        os.execvpe(argv[0], argv, node.env())
    except OSError as error:
        raise SimError(f"cannot run {argv[0]}: {error.strerror}") from error


def enter(node: SimNode, device_plugins: Path | None = None) -> None:
    """Moves this process into a mount namespace with the node's files in place."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNS) != 0:
        raise SimError(f"cannot make a mount namespace: {os.strerror(ctypes.get_errno())}")
    _mount(None, Path("/"), None, _MS_REC | _MS_PRIVATE)
    _replace_dev(node)
    _mount(node.root / "proc" / "driver", Path("/proc/driver"), None, _MS_BIND)
    _bind_pci(node)
    if device_plugins is not None:
        device_plugins.mkdir(parents=True, exist_ok=True)
        _KUBELET_PLUGINS.mkdir(parents=True, exist_ok=True)
        _mount(device_plugins, _KUBELET_PLUGINS, None, _MS_BIND)


def _replace_dev(node: SimNode) -> None:
    """A new /dev with everything of the old one and the node's devices: the old stays as it is."""
    with tempfile.TemporaryDirectory() as place:
        fresh = Path(place)
        _mount(None, fresh, "tmpfs", _MS_NOSUID, "mode=755")
        for old in Path("/dev").iterdir():
            if not old.name.startswith("nvidia"):
                _mirror(old, fresh / old.name)
        driver_root.make_device_nodes(fresh, driver_root.device_nodes(node.state.values()))
        _mount(fresh, Path("/dev"), None, _MS_MOVE)


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
        # A machine without PCI: sysfs takes no new directories, so /sys/bus becomes the node's.
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
    parser = argparse.ArgumentParser(prog="python -m gpuslice_sim.namespace")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--device-plugins", type=Path)
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    try:
        run(SimNode.open(options.directory), options.command, options.device_plugins)
    except SimError as error:
        sys.exit(f"gpuslice-sim: {error}")


if __name__ == "__main__":
    main()
