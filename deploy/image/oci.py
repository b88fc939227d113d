"""Writes a container image as one file: an OCI layout in a tar archive.

Equal input gives equal bytes: entries are sorted, times and owners are fixed.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import tarfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .errors import ImageBuildError
from .tree import Directory, Entry, File, Link, Tree, with_parents


@dataclass(frozen=True, slots=True)
class Layer:
    """`diff_id` is the digest of the tar archive, `blob` is the archive as it is transferred."""

    blob: bytes
    kind: str
    diff_id: str


@dataclass(frozen=True, slots=True)
class Settings:
    """How a container of the image starts."""

    architecture: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    created: str = "1970-01-01T00:00:00Z"


def plain_layer(tree: Tree) -> Layer:
    archive = pack(tree)
    return Layer(archive, "layer.v1.tar", _digest(archive))


def compressed_layer(tree: Tree) -> Layer:
    archive = pack(tree)
    # The gzip header of zlib contains neither a time nor a name.
    compressor = zlib.compressobj(6, zlib.DEFLATED, _GZIP)
    blob = compressor.compress(archive) + compressor.flush()
    return Layer(blob, _COMPRESSED, _digest(archive))


def read_compressed_layer(blob: bytes) -> Layer:
    return Layer(blob, _COMPRESSED, _digest(zlib.decompress(blob, _GZIP)))


def unpack(layer: Layer) -> dict[str, Entry]:
    archive = zlib.decompress(layer.blob, _GZIP) if layer.kind == _COMPRESSED else layer.blob
    return read_archive(archive)


def pack(tree: Tree) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for path, entry in with_parents(tree).items():
            member = tarfile.TarInfo(path)
            match entry:
                case Directory(mode):
                    member.type, member.mode = tarfile.DIRTYPE, mode
                    tar.addfile(member)
                case File(content, mode):
                    member.size, member.mode = len(content), mode
                    tar.addfile(member, io.BytesIO(content))
                case Link(target):
                    member.type, member.mode = tarfile.SYMTYPE, 0o777
                    member.linkname = target
                    tar.addfile(member)
    return buffer.getvalue()


def read_archive(archive: bytes) -> dict[str, Entry]:
    """Reads a tar archive of files, directories and links. Hard links become separate files."""
    tree: dict[str, Entry] = {}
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        for member in tar:
            path = member.name.removeprefix("./").strip("/")
            if path not in ("", "."):
                tree[path] = _read_member(tar, member)
    return tree


def write_image(name: str, settings: Settings, layers: Sequence[Layer], target: Path) -> None:
    """`name` is fully qualified and has a tag: engines store the image under this name."""
    tag = _tag(name)
    if not layers:
        raise ImageBuildError(f"image {name} has no layers: add at least one")
    blobs: dict[str, bytes] = {}

    def add(content: bytes, kind: str) -> dict[str, object]:
        digest = _digest(content)
        blobs[_blob_path(digest)] = content
        return {
            "mediaType": f"application/vnd.oci.image.{kind}",
            "digest": digest,
            "size": len(content),
        }

    config = add(_json(_config(settings, layers)), "config.v1+json")
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": [add(layer.blob, layer.kind) for layer in layers],
    }
    record = add(_json(manifest), "manifest.v1+json") | {
        "platform": {"architecture": settings.architecture, "os": "linux"},
        "annotations": {
            "io.containerd.image.name": name,
            "org.opencontainers.image.ref.name": tag,
        },
    }
    # Docker's classic image store reads this file instead of the index.
    docker = {
        "Config": _blob_path(str(config["digest"])),
        "RepoTags": [name],
        "Layers": [_blob_path(_digest(layer.blob)) for layer in layers],
    }
    files = {
        "oci-layout": _json({"imageLayoutVersion": "1.0.0"}),
        "index.json": _json({"schemaVersion": 2, "manifests": [record]}),
        "manifest.json": _json([docker]),
        **blobs,
    }
    target.write_bytes(pack({path: File(content) for path, content in files.items()}))


_GZIP = 31
_COMPRESSED = "layer.v1.tar+gzip"
_NAME = re.compile(r"[a-z0-9.-]+(?::\d+)?(?:/[a-z0-9._-]+)+:(?P<tag>\w[\w.-]{0,127})", re.ASCII)


def _tag(name: str) -> str:
    matched = _NAME.fullmatch(name)
    if matched is None:
        raise ImageBuildError(
            f"image name {name!r} is not fully qualified: use host/path:tag in lower case"
        )
    return matched["tag"]


def _config(settings: Settings, layers: Sequence[Layer]) -> dict[str, object]:
    started = {
        "Entrypoint": list(settings.entrypoint),
        "Cmd": list(settings.command),
        "Env": [f"{name}={value}" for name, value in settings.environment.items()],
        "User": settings.user,
        "Labels": dict(sorted(settings.labels.items())),
        "WorkingDir": "/",
    }
    return {
        "created": settings.created,
        "architecture": settings.architecture,
        "os": "linux",
        "config": {key: value for key, value in started.items() if value},
        "rootfs": {"type": "layers", "diff_ids": [layer.diff_id for layer in layers]},
    }


def _read_member(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry:
    if member.isdir():
        return Directory(member.mode & 0o7777)
    if member.issym():
        return Link(member.linkname)
    content = tar.extractfile(member) if member.isreg() or member.islnk() else None
    if content is None:
        raise ImageBuildError(
            f"{member.name} is not a file, directory or link: remove it from the image"
        )
    return File(content.read(), member.mode & 0o7777)


def _digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


def _blob_path(digest: str) -> str:
    return f"blobs/{digest.replace(':', '/')}"


def _json(value: object) -> bytes:
    return json.dumps(value).encode()
