"""Clusters that serve many tests. Every test leaves its cluster without pods and with everything
running.

Tests that use the fixture `client` need nothing but the Kubernetes API: they run against the
cluster that GPUSLICE_E2E_KUBECONFIG names, if it is set, and all others are skipped.

Tests of different clusters can run at the same time (`pytest -n 2 --dist loadgroup`): most of their
time they wait for Kubernetes.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

from deploy.image import build_image
from tests.peers.build import Say

from .build import Binaries, ClusterBuildError, get_binaries
from .groups import ByCluster, group
from .harness import MPS_PIPE, TEST_IMAGE, Client, Cluster, ExistingCluster, NodeSpec
from .harness.daemonset import DaemonSetAgent, grant_access
from .harness.existing import IMAGE_VARIABLE, KUBECONFIG_VARIABLE


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Shows progress at once: a build takes minutes."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def write(line: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{line}", end="", flush=True)

    return write


@pytest.fixture(scope="session")
def binaries(say: Say) -> Binaries:
    return get_binaries(say=say)


@pytest.fixture(scope="session")
def image_archive(tmp_path_factory: pytest.TempPathFactory, say: Say) -> Path:
    """The container image of `make image`."""
    return build_image(tmp_path_factory.mktemp("image") / "image.tar", say=say)


@pytest.fixture(scope="session")
def shared_cluster(binaries: Binaries, say: Say) -> Iterator[Cluster]:
    """Its nodes advertise all free units: tests place pods by themselves, and count."""
    agent = (
        "agent",
        "--mps-pipe",
        MPS_PIPE,
        "--memory-advertise=all",
        "--memory-reserve=0",  # whole GPUs
    )
    nodes = [NodeSpec("node-a", "t4x2", agent=agent), NodeSpec("node-b", "l40sx4", agent=agent)]
    with Cluster(nodes, binaries=binaries, say=say) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    yield shared_cluster
    shared_cluster.delete_pods()
    for node in shared_cluster.nodes:
        for process in node.processes:
            process.require()


@pytest.fixture(scope="session")
def nvidia_cluster(binaries: Binaries, say: Say) -> Iterator[Cluster]:
    """For agents in place of NVIDIA's device plugin, which every test starts itself.

    One node's GPUs have minor numbers in another order than their indices; the other's are cut.
    """
    nodes = [
        NodeSpec("node-w", "mixed", agent=(), mps=False),
        NodeSpec("node-m", "a100x2-mig-single", agent=(), mps=False),
    ]
    with Cluster(nodes, binaries=binaries, say=say) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def nvidia_agents(nvidia_cluster: Cluster) -> dict[str, DaemonSetAgent]:
    """By the name of their node."""
    account = grant_access(nvidia_cluster)
    return {
        node.name: DaemonSetAgent(nvidia_cluster, node, account) for node in nvidia_cluster.nodes
    }


@pytest.fixture
def nvidia(nvidia_cluster: Cluster, nvidia_agents: dict[str, DaemonSetAgent]) -> Iterator[Cluster]:
    """The cluster; afterwards it has neither pods nor agents."""
    yield nvidia_cluster
    nvidia_cluster.delete_pods()
    for agent in nvidia_agents.values():
        agent.stop()


@pytest.fixture
def whole(nvidia: Cluster, nvidia_agents: dict[str, DaemonSetAgent]) -> DaemonSetAgent:
    """The agent of node-w, whose GPUs are whole."""
    del nvidia
    return nvidia_agents["node-w"]


@pytest.fixture
def cut(nvidia: Cluster, nvidia_agents: dict[str, DaemonSetAgent]) -> DaemonSetAgent:
    """The agent of node-m, whose GPUs are cut by MIG."""
    del nvidia
    return nvidia_agents["node-m"]


@pytest.fixture(scope="session")
def existing_cluster(say: Say) -> Iterator[ExistingCluster]:
    found = shutil.which("kubectl")
    kubectl = Path(found) if found else get_binaries(say=say).kubectl
    kubeconfig = Path(os.environ[KUBECONFIG_VARIABLE])
    image = os.environ.get(IMAGE_VARIABLE) or TEST_IMAGE
    with ExistingCluster(kubeconfig, kubectl=kubectl, image=image) as cluster:
        say(f"namespace {cluster.namespace}, node {cluster.gpu_node}, image {image}")
        yield cluster


@pytest.fixture
def client(request: pytest.FixtureRequest) -> Iterator[Client]:
    """The shared cluster, or the one that exists; only what is asked for is started."""
    if not os.environ.get(KUBECONFIG_VARIABLE):
        yield request.getfixturevalue("cluster")
        return
    existing: ExistingCluster = request.getfixturevalue("existing_cluster")
    yield existing
    existing.delete_pods()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_setupnodes(config: pytest.Config) -> None:
    """Builds what is missing before workers start: they do not show progress."""
    if os.environ.get(KUBECONFIG_VARIABLE) or config.option.collectonly:
        return
    try:
        get_binaries()
    except ClusterBuildError as error:
        pytest.exit(str(error), 1)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> LoadScopeScheduling | None:
    return ByCluster(config, log) if config.option.dist == "loadgroup" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    ours.sort(key=lambda item: group(item.path.stem))
    items[:] = [item for item in items if item not in set(ours)] + ours
    if not os.environ.get(KUBECONFIG_VARIABLE):
        return
    reason = f"needs more than the Kubernetes API, all there is with {KUBECONFIG_VARIABLE}"
    for item in ours:
        if "client" not in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    for value in getattr(item, "funcargs", {}).values():
        if report.failed and isinstance(value, Cluster):
            report.sections.append(("cluster processes", value.describe_processes()))
            break
    return report
