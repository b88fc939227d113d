"""`make install`: the manifests with another image."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from deploy.image import image_name, read_project
from deploy.install.manifests import PROGRAMS, Nested, chosen, rendered

ROOT = Path(__file__).parents[3]
IMAGE = "registry.example.com:5000/team/gpuslice:1.0"


def make(*variables: str, **environment: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    return subprocess.run(
        ["make", "--no-print-directory", "install", *variables],
        cwd=ROOT,
        env=clean | environment,
        capture_output=True,
        text=True,
        check=False,
    )


def images(text: str) -> set[str]:
    found = set()
    for thing in yaml.safe_load_all(text):
        if thing["kind"] == "DaemonSet":
            pod = thing["spec"]["template"]["spec"]
            for container in (*pod.get("initContainers", []), *pod["containers"]):
                found.add(container["image"])
    return found


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("nested", Nested)
def test_every_container_has_the_image(program: str, nested: Nested) -> None:
    text = rendered(chosen(program, nested), IMAGE)
    assert images(text) == {IMAGE}
    assert image_name(read_project()) not in text


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("nested", Nested)
def test_everything_that_a_daemonset_needs_is_applied(program: str, nested: Nested) -> None:
    things: list[dict[str, Any]] = list(
        yaml.safe_load_all(rendered(chosen(program, nested), IMAGE))
    )
    names = {(thing["kind"], thing["metadata"]["name"]) for thing in things}
    for thing in things:
        if thing["kind"] == "DaemonSet":
            pod = thing["spec"]["template"]["spec"]
            assert ("ServiceAccount", pod["serviceAccountName"]) in names
            assert ("RuntimeClass", pod["runtimeClassName"]) in names
            for volume in pod["volumes"]:
                if "configMap" in volume:
                    assert ("ConfigMap", volume["configMap"]["name"]) in names
    assert ("NetworkPolicy", "gpuslice-metrics") in names


def test_a_dry_run_prints_the_manifests() -> None:
    done = make(f"IMAGE={IMAGE}", "NESTED=host", "DRY_RUN=1")
    assert done.returncode == 0, done.stderr
    assert images(done.stdout) == {IMAGE}
    assert "gpuslice-nested-host" in done.stdout


def test_the_manifests_go_to_kubectl(tmp_path: Path) -> None:
    kubectl = tmp_path / "kubectl"
    kubectl.write_text(f'#!/bin/sh\necho "$@"\ncat > {tmp_path}/applied\n')
    kubectl.chmod(0o755)
    done = make(f"IMAGE={IMAGE}", "PROGRAM=nvidia-mps", KUBECTL=str(kubectl))
    assert done.returncode == 0, done.stderr
    assert "nvidia-mps.yaml" in done.stdout
    assert "apply -f -" in done.stdout
    assert images((tmp_path / "applied").read_text()) == {IMAGE}


def test_an_image_without_a_registry_is_refused() -> None:
    done = make("IMAGE=gpuslice", "DRY_RUN=1")
    assert done.returncode != 0
    assert "use registry/name:tag" in done.stderr
    assert make("DRY_RUN=1").returncode != 0
