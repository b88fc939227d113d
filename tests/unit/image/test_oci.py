"""Images in one file: well-formed for every engine, and equal for equal input."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from deploy.image.errors import ImageBuildError
from deploy.image.oci import (
    Layer,
    Settings,
    compressed_layer,
    pack,
    plain_layer,
    read_archive,
    read_compressed_layer,
    unpack,
    write_image,
)
from deploy.image.tree import Directory, Entry, File, Link

NAME = "images.example/group/tool:1.0"
TREE: dict[str, Entry] = {
    "usr/bin/tool": File(b"#!/bin/sh\n", 0o755),
    "etc/settings": File(b"a=1\n"),
    "bin": Link("usr/bin"),
    "tmp": Directory(0o1777),
}
MORE: dict[str, Entry] = {"opt/more": File(b"more" * 1000)}
SETTINGS = Settings(
    architecture="arm64",
    entrypoint=["tool"],
    command=["--now"],
    environment={"PATH": "/usr/bin", "EMPTY": ""},
    user="0:0",
    labels={"b": "2", "a": "1"},
)


class Image:
    """Reads an archive as an engine does: from the index to the blobs."""

    def __init__(self, archive: Path) -> None:
        with tarfile.open(archive) as tar:
            self.files = {
                member.name: content.read()
                for member in tar
                if (content := tar.extractfile(member)) is not None
            }
        [self.record] = json.loads(self.files["index.json"])["manifests"]
        self.manifest = json.loads(self.blob(self.record))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers = [self.blob(record) for record in self.manifest["layers"]]

    def blob(self, record: dict[str, Any]) -> bytes:
        content = self.files["blobs/" + record["digest"].replace(":", "/")]
        assert record["digest"] == digest(content)
        assert record["size"] == len(content)
        return content


def digest(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


@pytest.fixture
def image(tmp_path: Path) -> Image:
    write_image(NAME, SETTINGS, [plain_layer(TREE), compressed_layer(MORE)], tmp_path / "a.tar")
    return Image(tmp_path / "a.tar")


def test_every_digest_and_size_is_that_of_its_blob(image: Image) -> None:
    assert json.loads(image.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    named = [image.record, image.manifest["config"], *image.manifest["layers"]]
    blobs = {"blobs/" + one["digest"].replace(":", "/") for one in named}
    assert set(image.files) == blobs | {"oci-layout", "index.json", "manifest.json"}


def test_layers_are_known_by_the_digest_of_what_is_unpacked(image: Image) -> None:
    plain, compressed = image.layers
    assert image.config["rootfs"] == {
        "type": "layers",
        "diff_ids": [digest(plain), digest(gzip.decompress(compressed))],
    }
    assert [record["mediaType"] for record in image.manifest["layers"]] == [
        "application/vnd.oci.image.layer.v1.tar",
        "application/vnd.oci.image.layer.v1.tar+gzip",
    ]


def test_the_name_is_where_each_engine_looks_for_it(image: Image) -> None:
    assert image.record["annotations"] == {
        "io.containerd.image.name": NAME,
        "org.opencontainers.image.ref.name": "1.0",
    }
    [docker] = json.loads(image.files["manifest.json"])
    assert docker["RepoTags"] == [NAME]
    assert json.loads(image.files[docker["Config"]]) == image.config
    assert [image.files[path] for path in docker["Layers"]] == image.layers


def test_a_container_starts_as_told(image: Image) -> None:
    assert image.config["architecture"] == "arm64"
    assert image.record["platform"] == {"architecture": "arm64", "os": "linux"}
    assert image.config["config"] == {
        "Entrypoint": ["tool"],
        "Cmd": ["--now"],
        "Env": ["PATH=/usr/bin", "EMPTY="],
        "User": "0:0",
        "Labels": {"a": "1", "b": "2"},
        "WorkingDir": "/",
    }


def test_what_is_not_told_is_left_to_the_engine(tmp_path: Path) -> None:
    write_image(NAME, Settings("amd64"), [plain_layer(TREE)], tmp_path / "a.tar")
    assert Image(tmp_path / "a.tar").config["config"] == {"WorkingDir": "/"}


def test_files_belong_to_root_and_have_no_time(image: Image) -> None:
    with tarfile.open(fileobj=io.BytesIO(image.layers[0])) as tar:
        members = {member.name: member for member in tar}
    assert {(one.uid, one.gid, one.uname, one.mtime) for one in members.values()} == {(0, 0, "", 0)}
    assert list(members) == ["bin", "etc", "etc/settings", "tmp", "usr", "usr/bin", "usr/bin/tool"]
    modes = {name: member.mode for name, member in members.items()}
    assert modes["tmp"] == 0o1777
    assert modes["usr/bin/tool"] == 0o755
    assert modes["etc/settings"] == 0o644
    assert members["bin"].linkname == "usr/bin"


@pytest.mark.parametrize("make", [plain_layer, compressed_layer])
def test_equal_input_in_any_order_gives_equal_bytes(
    tmp_path: Path, make: Callable[[dict[str, Entry]], Layer]
) -> None:
    turned = dict(reversed(TREE.items()))
    write_image(NAME, SETTINGS, [make(TREE)], tmp_path / "a.tar")
    write_image(NAME, SETTINGS, [make(turned)], tmp_path / "b.tar")
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()


@pytest.mark.parametrize("make", [plain_layer, compressed_layer])
def test_a_layer_unpacks_to_what_it_was_made_of(
    make: Callable[[dict[str, Entry]], Layer],
) -> None:
    parents = {"etc": Directory(), "usr": Directory(), "usr/bin": Directory()}
    assert unpack(make(TREE)) == parents | TREE


def test_a_stored_layer_is_the_layer_that_was_made() -> None:
    layer = compressed_layer(TREE)
    assert read_compressed_layer(layer.blob) == layer


def test_hard_links_become_files() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        first = tarfile.TarInfo("./one")
        first.size = 3
        tar.addfile(first, io.BytesIO(b"abc"))
        second = tarfile.TarInfo("./two")
        second.type, second.linkname = tarfile.LNKTYPE, "./one"
        tar.addfile(second)
    assert read_archive(buffer.getvalue()) == {"one": File(b"abc"), "two": File(b"abc")}


def test_a_device_has_no_place_in_an_image() -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        device = tarfile.TarInfo("dev/null")
        device.type = tarfile.CHRTYPE
        tar.addfile(device)
    with pytest.raises(ImageBuildError, match="dev/null is not a file, directory or link"):
        read_archive(buffer.getvalue())


def test_long_names_and_unusual_letters_survive() -> None:
    tree: dict[str, Entry] = {"d" * 90 + "/" + "f" * 90 + "/Főtanúsítvány": File(b"x")}
    assert read_archive(pack(tree)).items() >= tree.items()


@pytest.mark.parametrize(
    "name", ["tool:1", "images.example/tool", "images.example/Tool:1", "a b/c:1", "h/t:", "/t:1"]
)
def test_a_name_that_an_engine_would_complete_or_refuse_is_refused(
    tmp_path: Path, name: str
) -> None:
    with pytest.raises(ImageBuildError, match=f"'{name}' is not fully qualified: use host"):
        write_image(name, SETTINGS, [plain_layer(TREE)], tmp_path / "a.tar")
    assert not (tmp_path / "a.tar").exists()


def test_an_image_without_layers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ImageBuildError, match=f"{NAME} has no layers"):
        write_image(NAME, SETTINGS, [], tmp_path / "a.tar")
