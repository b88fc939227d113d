"""NVIDIA's own programs, built once, and simulated nodes for them to judge."""

from __future__ import annotations

import os
import signal
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.node import SimNode, create
from gpuslice_sim.process import BackgroundProcess
from tests.surroundings import SCRATCH, remove_directory

from . import plugins
from .agreement import pair
from .agreement.daemon import shared_by_mps
from .agreement.pair import Pair
from .build import Peers, Say, build_peers
from .driver_programs import BRANCHES, DriverPrograms, DriverProgramsMissing, fetch
from .plugins import Plugin

MakeNode = Callable[..., SimNode]
StartPlugin = Callable[..., Plugin]
StartPair = Callable[..., Pair]
ShareGpus = Callable[[SimNode, Path], tuple[BackgroundProcess, Path]]


@pytest.fixture(scope="session")
def peers(pytestconfig: pytest.Config) -> Peers:
    return build_peers(say=_say(pytestconfig))


@pytest.fixture(scope="session", params=BRANCHES)
def driver_programs(request: pytest.FixtureRequest, pytestconfig: pytest.Config) -> DriverPrograms:
    """NVIDIA's MPS programs of each driver branch. Skips what cannot be had here."""
    try:
        return fetch(request.param, _say(pytestconfig))
    except DriverProgramsMissing as error:
        pytest.skip(str(error))


def _say(pytestconfig: pytest.Config) -> Say:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    return say


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
    path = Path(tempfile.mkdtemp(prefix="peers-", dir=SCRATCH))
    yield path
    remove_directory(path)


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


@pytest.fixture
def start_pair(peers: Peers, scratch: Path) -> Iterator[StartPair]:
    """start_pair(node, "--pass-device-specs"): NVIDIA's plugin and ours, which end well."""
    with ExitStack() as stack:

        def start(
            node: SimNode,
            *flags: str,
            env: dict[str, str | None] | None = None,
            binds: dict[str, Path] | None = None,
        ) -> Pair:
            both = stack.enter_context(
                pair.started(peers.device_plugin, node, scratch, flags, env or {}, binds or {})
            )
            begun.append(both)
            return both

        begun: list[Pair] = []
        yield start
        left = [
            side
            for both in begun
            for side in (both.theirs, both.ours)
            if side.process.returncode is None
        ]
        for side in left:
            side.process.send(signal.SIGTERM)
        for side in left:
            assert side.process.wait() == 0, side.process.output()


@pytest.fixture
def share_gpus(peers: Peers, scratch: Path) -> Iterator[ShareGpus]:
    """share_gpus(node, config): NVIDIA's MPS daemon, ready, and what it calls /mps."""
    with ExitStack() as stack:

        def share(node: SimNode, config: Path) -> tuple[BackgroundProcess, Path]:
            place = scratch / "mps"
            program = peers.mps_control_daemon
            return stack.enter_context(shared_by_mps(program, node, config, place)), place

        yield share
