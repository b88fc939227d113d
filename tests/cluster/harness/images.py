"""Container images of the scenarios, made without a registry."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from deploy.image.oci import Settings, plain_layer, write_image
from deploy.image.tree import Directory, Entry, File, Link

# Fully qualified: a short name would be looked up in a public registry.
TEST_IMAGE = "test.gpuslice.dev/simcuda:1"
PAUSE_IMAGE = "test.gpuslice.dev/pause:1"
_DIRECTORIES = ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "usr", "var")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def write_test_image(target: Path, busybox: Path, programs: Path) -> None:
    """With the simulated programs for containers from this directory."""
    names = ("simcuda", "nvidia-cuda-mps-control")
    files = {f"bin/{name}": programs / name for name in names}
    write_busybox_image(target, TEST_IMAGE, busybox, files)


def write_busybox_image(
    target: Path, name: str, busybox: Path, more: Mapping[str, Path] | None = None
) -> None:
    """busybox with all its applets, and more files."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    links = {f"bin/{applet}": Link("busybox") for applet in listed.stdout.split()}
    _write(target, name, links | _programs({"bin/busybox": busybox, **(more or {})}), ["/bin/sh"])


def write_pause_image(target: Path, busybox: Path) -> None:
    """What keeps a pod's namespaces open."""
    command = ["/bin/busybox", "sleep", "2147483647"]
    _write(target, PAUSE_IMAGE, _programs({"bin/busybox": busybox}), command)


def _programs(files: Mapping[str, Path]) -> dict[str, Entry]:
    return {path: File(file.read_bytes(), 0o755) for path, file in files.items()}


def _write(target: Path, name: str, content: Mapping[str, Entry], command: Sequence[str]) -> None:
    places = {path: Directory() for path in _DIRECTORIES} | {"tmp": Directory(0o1777)}
    settings = Settings(
        architecture=_ARCHITECTURE.get(platform.machine(), platform.machine()),
        command=command,
        environment={"PATH": "/bin"},
    )
    write_image(name, settings, [plain_layer({**places, **content})], target)
