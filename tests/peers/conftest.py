"""NVIDIA's own programs, built once, and simulated nodes for them to judge."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.node import SimNode, create

from . import plugins
from .build import Peers, build_peers
from .plugins import Plugin

MakeNode = Callable[..., SimNode]
StartPlugin = Callable[..., Plugin]


@pytest.fixture(scope="session")
def peers(pytestconfig: pytest.Config) -> Peers:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    return build_peers(say=say)


@pytest.fixture(scope="session")
def root_user() -> None:
    """Not a reason to skip: a run that judged nothing must not look like one that passed."""
    if os.geteuid() != 0:
        raise PermissionError(
            "NVIDIA's programs have fixed paths and run in private mount namespaces, which need "
            "root: run `sudo make peers`, or run it in a container as root with CAP_SYS_ADMIN"
        )


@pytest.fixture
def scratch() -> Iterator[Path]:
    """Like tmp_path, but short enough for the paths of sockets."""
    path = Path(tempfile.mkdtemp(prefix="peers-"))
    yield path
    shutil.rmtree(path)


@pytest.fixture
def make_node(root_user: None, scratch: Path) -> MakeNode:
    """make_node("t4x2", driver=570)"""

    def make(profile: str, *, driver: int = 570) -> SimNode:
        return create(scratch / "node", profile, driver=driver)

    return make


@pytest.fixture
def start_plugin(peers: Peers, scratch: Path) -> Iterator[StartPlugin]:
    """start_plugin(node, "--mig-strategy=mixed"); it must end well when asked to."""
    with ExitStack() as stack:

        def start(node: SimNode, *flags: str, binds: dict[str, Path] | None = None) -> Plugin:
            kubelet = stack.enter_context(Kubelet(scratch / "dp"))
            plugin = plugins.start(
                peers.device_plugin, node, kubelet, scratch, *flags, binds=binds or {}
            )
            stack.enter_context(plugin.process)
            started.append(plugin)
            return plugin

        started: list[Plugin] = []
        yield start
        for plugin in started:
            if plugin.process.returncode is None:
                assert plugin.process.stop() == 0, plugin.process.output()
