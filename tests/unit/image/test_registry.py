"""Pushing an image to a registry."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from deploy.image import ImageBuildError
from deploy.image.oci import Settings, compressed_layer, write_image
from deploy.image.registry import Reference, parse_reference, push_image
from deploy.image.tree import File

from .registry_server import registry

LOGIN = {"REGISTRY_USER": "me", "REGISTRY_PASSWORD": "secret"}
NOBODY = {"DOCKER_CONFIG": "/nonexistent"}
ROOT = Path(__file__).parents[3]


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    path = tmp_path / "image.tar"
    layers = [compressed_layer({"file": File(text)}) for text in (b"one", b"two")]
    write_image("localhost/gpuslice:1", Settings("amd64"), layers, path)
    return path


def quiet(line: str) -> None:
    del line


def push(archive: Path, name: str, environment: dict[str, str] | None = None) -> str:
    return push_image(archive, name, say=quiet, environment=environment or NOBODY)


def test_a_registry_gets_all_blobs_and_then_the_manifest(archive: Path) -> None:
    with registry() as received:
        digest = push(archive, f"{received.address}/team/gpuslice:1.0")
        [(path, manifest)] = received.manifests.items()
    assert path == "/v2/team/gpuslice/manifests/1.0"
    assert digest == f"sha256:{hashlib.sha256(manifest).hexdigest()}"
    assert len(received.blobs) == 3
    assert received.requests[-1].startswith("PUT /v2/team/gpuslice/manifests/")


def test_blobs_that_the_registry_has_are_not_sent_again(archive: Path) -> None:
    with registry() as received:
        push(archive, f"{received.address}/team/gpuslice:1.0")
        received.requests.clear()
        push(archive, f"{received.address}/team/gpuslice:1.1")
        assert not [line for line in received.requests if line.startswith("POST")]


@pytest.mark.parametrize("bearer", [False, True], ids=["basic", "bearer"])
def test_a_registry_that_asks_for_a_login_gets_it(
    archive: Path, tmp_path: Path, *, bearer: bool
) -> None:
    with registry(login="me:secret", bearer=bearer) as received:
        push(archive, f"{received.address}/team/gpuslice:1.0", LOGIN)
        assert received.manifests
        stored = {received.address: {"auth": base64.b64encode(b"me:secret").decode()}}
        (tmp_path / "config.json").write_text(json.dumps({"auths": stored}))
        push(archive, f"{received.address}/team/gpuslice:1.1", {"DOCKER_CONFIG": str(tmp_path)})
        for wrong in (NOBODY, LOGIN | {"REGISTRY_PASSWORD": "guess"}):
            with pytest.raises(ImageBuildError, match="401: log in: set REGISTRY_USER") as refused:
                push(archive, f"{received.address}/team/gpuslice:1.2", wrong)
            assert "guess" not in str(refused.value)


def test_a_registry_that_cannot_be_reached_is_named(archive: Path) -> None:
    with pytest.raises(ImageBuildError, match=r"registry 127\.0\.0\.1:9 cannot be reached.*IMAGE"):
        push(archive, "127.0.0.1:9/gpuslice:1")


def test_a_registry_without_tls_is_a_hint_to_plain_http(archive: Path) -> None:
    with registry() as received:
        name = received.address.replace("127.0.0.1", "127.1")  # not recognised as this machine
        with pytest.raises(ImageBuildError, match="PLAIN_HTTP=1"):
            push(archive, f"{name}/team/gpuslice:1.0")
        push_image(
            archive,
            f"{name}/team/gpuslice:1.0",
            say=quiet,
            plain_http=True,
            environment=NOBODY,
        )
        assert received.manifests


def test_a_name_has_a_registry_and_a_tag() -> None:
    assert parse_reference("r.example.com:5000/a/b:1.0") == Reference(
        "r.example.com:5000", "a/b", "1.0"
    )
    for name in ("", "gpuslice", "gpuslice:1", "r/name", "R/name:1", "r/name:1 --x", "r/na me:1"):
        with pytest.raises(ImageBuildError, match="use registry/name:tag"):
            parse_reference(name)


def test_a_push_without_a_registry_is_refused_before_the_build() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "deploy.image", "--push"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "set IMAGE" in done.stderr
