"""Our push to a registry that others wrote: the one of go-containerregistry, built by Go."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from deploy.image.oci import Settings, compressed_layer, write_image
from deploy.image.registry import push_image
from deploy.image.tree import File
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import free_ports

from .build import cache_directory, exclusive, go, to_stderr

_SOURCE = Path(__file__).parent / "go" / "registry"
_PROGRAM = "github.com/google/go-containerregistry/cmd/registry"


@pytest.fixture(scope="module")
def program() -> Path:
    pins = (_SOURCE / "go.mod").read_bytes() + (_SOURCE / "go.sum").read_bytes()
    target = cache_directory("peers") / hashlib.sha256(pins).hexdigest()[:16] / "bin" / "registry"
    with exclusive(cache_directory("peers"), to_stderr):
        if not target.exists():
            done = go("build", "-trimpath", "-o", str(target), _PROGRAM, directory=_SOURCE)
            assert done.returncode == 0, done.stderr
    return target


@pytest.fixture
def registry(program: Path, tmp_path: Path) -> Iterator[str]:
    """Its address."""
    [port] = free_ports("127.0.0.1", 1)
    argv = [str(program), f"-port={port}"]
    with BackgroundProcess(argv, env={}, log=tmp_path / "registry.log") as running:
        running.wait_for_output("serving on port")
        yield f"localhost:{port}"


def fetch(address: str, path: str) -> tuple[int, bytes]:
    accepted = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    with contextlib.closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path, headers=accepted)
        with connection.getresponse() as answer:
            return answer.status, answer.read()


def test_an_image_can_be_pulled_from_the_registry_that_it_was_pushed_to(
    registry: str, tmp_path: Path
) -> None:
    archive = tmp_path / "image.tar"
    layers = [compressed_layer({"file": File(bytes([number]) * 70_000)}) for number in range(3)]
    write_image("localhost/gpuslice:1", Settings("amd64"), layers, archive)
    for tag in ("1.0", "1.1"):  # the second time, every blob is there
        digest = push_image(archive, f"{registry}/team/gpuslice:{tag}", say=to_stderr)
        status, manifest = fetch(registry, f"/v2/team/gpuslice/manifests/{tag}")
        assert status == 200
        assert f"sha256:{hashlib.sha256(manifest).hexdigest()}" == digest
        parsed = json.loads(manifest)
        for entry in (parsed["config"], *parsed["layers"]):
            status, blob = fetch(registry, f"/v2/team/gpuslice/blobs/{entry['digest']}")
            assert status == 200
            assert f"sha256:{hashlib.sha256(blob).hexdigest()}" == entry["digest"]
