"""Container images made without a registry: OCI layouts in a tar file."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import subprocess
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# Fully qualified: a short name would be looked up in a public registry.
TEST_IMAGE = "test.gpuslice.dev/simcuda:1"
PAUSE_IMAGE = "test.gpuslice.dev/pause:1"
_DIRECTORIES = ("bin", "dev", "etc", "home", "proc", "root", "run", "sys", "tmp", "usr", "var")
_ARCHITECTURE = {"x86_64": "amd64", "aarch64": "arm64"}


def write_test_image(target: Path, busybox: Path, simcuda: Path) -> None:
    write_busybox_image(target, TEST_IMAGE, busybox, {"bin/simcuda": simcuda})


def write_busybox_image(
    target: Path, name: str, busybox: Path, more: Mapping[str, Path] | None = None
) -> None:
    """busybox with all its applets, and more files."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    links = {f"bin/{applet}": "busybox" for applet in listed.stdout.split()}
    files = {"bin/busybox": busybox, **(more or {})}
    layer = _layer(files, {link: to for link, to in links.items() if link not in files})
    _write_layout(target, name, layer, ["/bin/sh"])


def write_pause_image(target: Path, busybox: Path) -> None:
    """What keeps a pod's namespaces open."""
    layer = _layer({"bin/busybox": busybox}, {})
    _write_layout(target, PAUSE_IMAGE, layer, ["/bin/busybox", "sleep", "2147483647"])


def _layer(files: Mapping[str, Path], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in _DIRECTORIES:
            entry = _entry(name, 0o1777 if name == "tmp" else 0o755)
            entry.type = tarfile.DIRTYPE
            tar.addfile(entry)
        for name, path in sorted(files.items()):
            content = path.read_bytes()
            entry = _entry(name, 0o755)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for name, to in sorted(links.items()):
            entry = _entry(name, 0o777)
            entry.type, entry.linkname = tarfile.SYMTYPE, to
            tar.addfile(entry)
    return buffer.getvalue()


def _entry(name: str, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.mode = mode
    return entry


def _write_layout(target: Path, name: str, layer: bytes, command: Sequence[str]) -> None:
    blobs: dict[str, bytes] = {}

    def add(content: bytes, kind: str) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": f"sha256:{digest}",
            "size": len(content),
        }

    layer_record = add(layer, "layer.v1.tar")
    config = {
        "architecture": _ARCHITECTURE.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Cmd": list(command), "Env": ["PATH=/bin"]},
        "rootfs": {"type": "layers", "diff_ids": [layer_record["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": add(json.dumps(config).encode(), "config.v1+json"),
        "layers": [layer_record],
    }
    record = add(json.dumps(manifest).encode(), "manifest.v1+json")
    record["annotations"] = {"io.containerd.image.name": name}
    index = {"schemaVersion": 2, "manifests": [record]}
    members = {
        "oci-layout": json.dumps({"imageLayoutVersion": "1.0.0"}).encode(),
        "index.json": json.dumps(index).encode(),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    with tarfile.open(target, "w") as tar:
        for path, content in members.items():
            entry = _entry(path, 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
