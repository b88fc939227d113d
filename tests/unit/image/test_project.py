"""What the image says of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from deploy.image import ImageBuildError, image_name, read_project
from deploy.image.debian import Platform
from deploy.image.project import image_settings, minimum_version

MANIFESTS = Path(__file__).parents[3] / "deploy" / "manifests"


def daemon_sets() -> list[Path]:
    return [path for path in sorted(MANIFESTS.glob("*.yaml")) if "DaemonSet" in path.read_text()]


@pytest.mark.parametrize("path", daemon_sets(), ids=lambda path: path.name)
def test_manifests_name_the_image_that_is_built_and_programs_that_are_in_it(path: Path) -> None:
    project = read_project()
    [pod] = [
        thing["spec"]["template"]["spec"]
        for thing in yaml.safe_load_all(path.read_text())
        if thing["kind"] == "DaemonSet"
    ]
    for container in pod["containers"]:
        assert image_name(project) == container["image"]
        assert container["command"][0] in project.programs


def test_the_image_stands_in_for_nvidias_where_a_manifest_names_no_command() -> None:
    settings = image_settings(read_project(), Platform("amd64", "x86_64-linux-gnu"))
    assert settings.entrypoint == ("nvidia-device-plugin",)
    assert settings.environment["NVIDIA_VISIBLE_DEVICES"] == "all"
    assert settings.environment["NVIDIA_DRIVER_CAPABILITIES"] == "compute,utility"


def test_labels_say_what_it_is() -> None:
    settings = image_settings(read_project(), Platform("arm64", "aarch64-linux-gnu"))
    prefix = "org.opencontainers.image."
    labels = {name.removeprefix(prefix): value for name, value in settings.labels.items()}
    assert labels["title"] == "gpuslice"
    assert labels["version"] == read_project().version
    assert labels["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}|none", labels.get("revision", "none"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", settings.created)


def test_the_oldest_python_is_read_from_the_project() -> None:
    assert minimum_version(">=3.11") == (3, 11)
    with pytest.raises(ImageBuildError, match=r"requires-python '>=3\.11,<4' in pyproject"):
        minimum_version(">=3.11,<4")
