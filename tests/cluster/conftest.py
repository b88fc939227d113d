"""One cluster for the whole run; every test leaves it without pods and with everything running."""

from __future__ import annotations

from collections.abc import Generator, Iterator

import pytest

from tests.peers.build import Say

from .build import Binaries, get_binaries
from .harness import Cluster, NodeSpec


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
def shared_cluster(binaries: Binaries, say: Say) -> Iterator[Cluster]:
    nodes = [NodeSpec("node-a", "t4x2"), NodeSpec("node-b", "l40sx4")]
    with Cluster(nodes, binaries=binaries, say=say) as cluster:
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    yield shared_cluster
    shared_cluster.delete_pods()
    for node in shared_cluster.nodes:
        for process in node.processes:
            process.require()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    cluster = getattr(item, "funcargs", {}).get("shared_cluster")
    if report.failed and isinstance(cluster, Cluster):
        report.sections.append(("cluster processes", cluster.describe_processes()))
    return report
