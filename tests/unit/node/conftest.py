from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.config.startup_options import StartupOptions
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()


@pytest.fixture
def configs(tmp_path: Path) -> ConfigMap:
    return ConfigMap(tmp_path / "configs", a="version: v1 # a", b="version: v1 # b")


@pytest.fixture
def labelled(kubernetes: Kubernetes, configs: ConfigMap, tmp_path: Path) -> StartupOptions:
    """Options of an agent on a node whose label chooses the configuration."""
    return StartupOptions(
        config_dir=configs.directory,
        node_name="n1",
        kubeconfig=kubernetes.kubeconfig(tmp_path / "kubeconfig"),
    )
