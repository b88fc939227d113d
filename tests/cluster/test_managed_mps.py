"""Slices from the manifests alone: nobody starts MPS on the nodes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from tests.peers.build import Say

from .build import Binaries
from .harness import Cluster, NodeSpec, eventually
from .harness.daemonset import patch_pod
from .harness.deployment import Deployment
from .harness.kube import Object
from .pods import check_slice, seen, slice_pod

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
PATCHES = MANIFESTS.parent / "patches"
NODE = "node-a"
# Of a GPU with 15 GiB, without what the driver and MPS need.
UNITS = 14
DEFAULT, EXCLUSIVE_PROCESS = 0, 3


@pytest.fixture(scope="module")
def cluster(binaries: Binaries, say: Say, image_archive: Path) -> Iterator[Cluster]:
    """A node with our image and two GPUs in their default mode. Nothing of ours runs."""
    with Cluster([NodeSpec(NODE, agent=(), mps=False)], binaries=binaries, say=say) as cluster:
        cluster.node(NODE).import_images([image_archive])
        yield cluster


def things(*names: str) -> list[Object]:
    return [thing for name in names for thing in yaml.safe_load_all((MANIFESTS / name).read_text())]


@pytest.fixture
def mps(cluster: Cluster) -> Iterator[Deployment]:
    """Both DaemonSets; the one with the MPS daemons."""
    with ExitStack() as stack:
        mps = stack.enter_context(Deployment(cluster, things("rbac.yaml", "agent-mps.yaml")))
        agent = stack.enter_context(Deployment(cluster, things("agent.yaml")))
        mps.wait_for_pods(NODE)
        agent.wait_for_pods(NODE)
        cluster.wait_for_amount(NODE, UNITS)  # of one GPU
        yield mps
        cluster.delete_pods()
    for gpu in cluster.node(NODE).sim.gpus():
        assert gpu.compute_mode == DEFAULT


def test_pods_are_held_to_exactly_their_slices(cluster: Cluster, mps: Deployment) -> None:
    for gpu in cluster.node(NODE).sim.gpus():
        assert gpu.compute_mode == EXCLUSIVE_PROCESS
    found = {}
    for name, units in (("large", 9), ("small", 6), ("last", 3)):
        cluster.create(slice_pod(name, units))
        cluster.wait_for_pod(name)
        found[name] = check_slice(cluster, NODE, name, units)
    for seen_by in found.values():
        pipe = f"/mps/{seen_by.device['uuid']}/pipe"
        assert seen_by.variables["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    gpus = {name: one.device["uuid"] for name, one in found.items()}
    assert len(set(gpus.values())) == 2
    # A tmpfs that the daemon and the containers of one GPU share.
    cluster.kubectl("exec", "large", "--", "touch", "/dev/shm/of-large")
    for name, gpu in gpus.items():
        shared = "of-large" in cluster.kubectl("exec", name, "--", "ls", "/dev/shm")
        assert shared is (gpu == gpus["large"])
    [pod] = mps.pods()
    assert "of-large" in mps.execute(pod, "sh", "-c", "ls /mps/GPU-*/shm")
    assert "MPSSharedMemoryNotBounded" not in mps.log(pod)


def test_pods_start_with_their_limits_after_the_mps_pod_is_replaced(
    cluster: Cluster, mps: Deployment
) -> None:
    cluster.create(slice_pod("before", 6))
    cluster.wait_for_pod("before")
    check_slice(cluster, NODE, "before", 6)
    [old] = mps.pods()
    # A new version: nothing happens until the pod of the node is deleted.
    place = f"--namespace={mps.namespace}"
    cluster.kubectl("rollout", "restart", "daemonset", mps.name, place)
    cluster.kubectl("delete", "pod", old["metadata"]["name"], place, "--wait=false")
    mps.wait_for_pods(NODE, other_than=[old])
    cluster.wait_for_amount(NODE, 6 + UNITS)
    cluster.create(slice_pod("after", 7))
    cluster.wait_for_pod("after")
    check_slice(cluster, NODE, "after", 7)
    # Its program lost its daemon, so the kubelet has started it again, with the new one.
    eventually(lambda: restarts(cluster, "before") > 0, "the container has started again")
    cluster.wait_for_pod("before")
    check_slice(cluster, NODE, "before", 6)
    assert seen(cluster, "before").report["mps"] is True


def test_gpushares_daemonset_can_use_managed_daemons(cluster: Cluster) -> None:
    """With the patch, and with the whole memory of GPUs, as gpushare counts it."""
    daemons, plugin = things("agent-mps.yaml"), things("rbac.yaml", "gpushare.yaml")
    for thing in (*daemons, *plugin):
        if thing["kind"] != "DaemonSet":
            continue
        spec = thing["spec"]["template"]["spec"]
        if thing in plugin:
            patch_pod(spec, PATCHES / "gpushare-managed-mps.yaml")
        else:
            [container] = spec["containers"]
            container["env"].append({"name": "GPUSLICE_MEMORY_RESERVE", "value": "0"})
    cluster.kube.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"gpushare": "true"}}})
    with Deployment(cluster, plugin) as gpushare, Deployment(cluster, daemons) as mps:
        mps.wait_for_pods(NODE)
        gpushare.wait_for_pods(NODE)
        cluster.wait_for_amount(NODE, 2 * 15)
        for name, units in (("whole", 15), ("small", 2)):
            cluster.create(slice_pod(name, units))
            cluster.wait_for_pod(name)
            check_slice(cluster, NODE, name, units)
        cluster.delete_pods()


def restarts(cluster: Cluster, name: str) -> int:
    [status] = cluster.pod(name)["status"]["containerStatuses"]
    return int(status["restartCount"])
