"""Pods that fit on no GPU wait: a controller does not create failed pods without end."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.peers.build import Say

from .build import Binaries
from .harness import Cluster, NodeSpec, Object, eventually
from .pods import check_nothing_is_double_booked, container, short_container

NODES = ("node-a", "node-b")
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
# Until the kubelet has published its next status, and the scheduler has acted on it.
STATUS_SECONDS = 12.0


@pytest.fixture(scope="module")
def two_nodes(binaries: Binaries, say: Say) -> Iterator[Cluster]:
    """Two T4 each, with the defaults of the agent and of the kubelet."""
    nodes = [NodeSpec(name, "t4x2", status_frequency="10s") for name in NODES]
    with Cluster(nodes, binaries=binaries, say=say) as cluster:
        yield cluster


@pytest.fixture
def cluster(two_nodes: Cluster) -> Iterator[Cluster]:
    yield two_nodes
    for path in (DEPLOYMENTS, JOBS):
        for thing in two_nodes.kube.get(path)["items"]:
            two_nodes.kube.delete(f"{path}/{thing['metadata']['name']}")
    two_nodes.delete_pods()
    for node in NODES:
        two_nodes.wait_for_amount(node, 15)


def template(one: Object, **spec: object) -> Object:
    labels = {"app": "train"}
    pod = {"containers": [one], "terminationGracePeriodSeconds": 0, **spec}
    return {"metadata": {"labels": labels}, "spec": pod}


def deployment(replicas: int, units: int) -> Object:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "train"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "train"}},
            "template": template(container(units)),
        },
    }


def phases(cluster: Cluster) -> dict[str, int]:
    """Phase -> number of pods. A failed pod stays until somebody deletes it."""
    found: dict[str, int] = {}
    for pod in cluster.pods():
        if "deletionTimestamp" not in pod["metadata"]:
            phase = pod["status"]["phase"]
            found[phase] = found.get(phase, 0) + 1
    return found


def wait_for_phases(cluster: Cluster, **expected: int) -> None:
    eventually(
        lambda: phases(cluster) == expected,
        f"pods are {expected}",
        explain=lambda: f"{phases(cluster)}\n{cluster.describe_processes()}",
    )


def test_a_deployment_that_does_not_fit_waits(cluster: Cluster) -> None:
    """Six pods of 9 GiB, and four GPUs of 15 GiB: a second one fits on no GPU."""
    cluster.create(deployment(6, 9))
    wait_for_phases(cluster, Running=4, Pending=2)
    time.sleep(STATUS_SECONDS)
    assert phases(cluster) == {"Running": 4, "Pending": 2}
    for node in NODES:
        check_nothing_is_double_booked(cluster, node)
        assert cluster.amount(node) == 9 + 9 + 6
    # A smaller pod uses what is left.
    cluster.create(
        {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "small"}}
        | {"spec": template(container(6))["spec"]}
    )
    cluster.wait_for_pod("small")


def test_a_restart_of_the_agent_fails_no_pod(cluster: Cluster) -> None:
    cluster.create(deployment(6, 9))
    wait_for_phases(cluster, Running=4, Pending=2)
    for node in cluster.nodes:
        node.agent.kill()
        node.agent.start()
    for node in cluster.nodes:
        cluster.wait_for_amount(node.name, 9 + 9 + 6)
    time.sleep(STATUS_SECONDS)
    assert phases(cluster) == {"Running": 4, "Pending": 2}


def test_pods_that_wait_start_when_others_end(cluster: Cluster) -> None:
    cluster.create(deployment(6, 9))
    wait_for_phases(cluster, Running=4, Pending=2)
    running = [p["metadata"]["name"] for p in cluster.pods() if p["status"]["phase"] == "Running"]
    cluster.delete_pods(*running[:3])
    wait_for_phases(cluster, Running=4, Pending=2)
    cluster.kube.patch(f"{DEPLOYMENTS}/train", {"spec": {"replicas": 4}})
    wait_for_phases(cluster, Running=4)
    for node in NODES:
        check_nothing_is_double_booked(cluster, node)


def test_a_job_that_does_not_fit_at_once_runs_without_a_failed_pod(cluster: Cluster) -> None:
    cluster.create(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "train"},
            "spec": {
                "completions": 8,
                "parallelism": 8,
                "backoffLimit": 0,
                "template": template(short_container(9), restartPolicy="Never"),
            },
        }
    )
    wait_for_phases(cluster, Succeeded=8)
