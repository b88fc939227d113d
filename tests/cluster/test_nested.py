"""Nested clusters: pods that are nodes of an inner cluster, with the manifests for both sides."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from gpuslice.codes import Code
from tests.peers.build import Say

from .build import Binaries
from .harness import Cluster, NodeSpec
from .harness.deployment import Deployment
from .harness.kube import Object
from .harness.nested import NestedCluster
from .pods import device_pod, seen

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
OUTER, GPU = "outer", "nvidia.com/gpu"
# GPUs of the nodes of each scenario: two of the four remain for nobody or for both.
NODES = {"mount": {"mounted-a": 1, "mounted-b": 2}, "none": {"written-a": 1, "written-b": 2}}


@pytest.fixture(scope="module")
def outer(binaries: Binaries, say: Say, image_archive: Path) -> Iterator[Cluster]:
    """One node with four GPUs and our image, and nothing of ours running."""
    spec = NodeSpec(OUTER, "v100x4", agent=(), mps=False)
    with Cluster([spec], binaries=binaries, say=say) as cluster:
        cluster.node(OUTER).import_images([image_archive])
        yield cluster


@pytest.fixture(scope="module")
def inner(outer: Cluster, image_archive: Path) -> Iterator[NestedCluster]:
    names = [name for nodes in NODES.values() for name in nodes]
    with NestedCluster(outer, names, images=[image_archive]) as cluster:
        yield cluster


def host(mode: str) -> list[Object]:
    """nested-host.yaml with this NESTED_FILE."""
    things = list(yaml.safe_load_all((MANIFESTS / "nested-host.yaml").read_text()))
    [daemon_set] = [thing for thing in things if thing["kind"] == "DaemonSet"]
    [container] = daemon_set["spec"]["template"]["spec"]["containers"]
    [place] = [entry for entry in container["env"] if entry["name"] == "NESTED_FILE"]
    place["value"] = mode
    return things


def guest(mode: str) -> list[Object]:
    """nested-guest.yaml, for nodes that write /gpu.env themselves as its comments say."""
    things = list(yaml.safe_load_all((MANIFESTS / "nested-guest.yaml").read_text()))
    if mode == "none":
        [daemon_set] = [thing for thing in things if thing["kind"] == "DaemonSet"]
        pod = daemon_set["spec"]["template"]["spec"]
        [mount] = [
            mount
            for mount in pod["containers"][0]["volumeMounts"]
            if mount["name"] == "nested-list"
        ]
        mount["mountPath"] = "/gpu.env"
        [volume] = [volume for volume in pod["volumes"] if volume["name"] == "nested-list"]
        volume["hostPath"] = {"path": "/gpu.env", "type": "File"}
    return things


def with_something_at_gpu_env(pod: Object) -> Object:
    """A pod whose own volume is where the original plugin has its list."""
    [container] = pod["spec"]["containers"]
    container["volumeMounts"].append({"name": "own", "mountPath": "/gpu.env"})
    pod["spec"]["volumes"].append({"name": "own", "emptyDir": {}})
    return pod


@pytest.mark.parametrize("mode", NODES)
def test_two_nested_nodes_offer_exactly_their_own_gpus(
    outer: Cluster, inner: NestedCluster, mode: str
) -> None:
    nodes = NODES[mode]
    with Deployment(outer, host(mode)) as agent:
        agent.wait_for_pods(OUTER)
        outer.wait_for_amount(OUTER, 4, resource=GPU)
        for name, gpus in nodes.items():
            pod = inner.node_pod(name, gpus)
            outer.create(with_something_at_gpu_env(pod) if mode == "mount" else pod)
        for name in nodes:
            outer.wait_for_pod(name)
            inner.wait_for_node(name)
        own = {name: allocated(outer, name) for name in nodes}
        assert {name: len(uuids) for name, uuids in own.items()} == nodes
        assert not own[min(nodes)] & own[max(nodes)]
        try:
            check_inside(outer, inner, mode, own)
        finally:
            inner.delete_pods()
            outer.delete_pods()
            inner.forget(*nodes)


def check_inside(outer: Cluster, inner: NestedCluster, mode: str, own: dict[str, set[str]]) -> None:
    with Deployment(inner, guest(mode)) as agents:
        for pod in agents.wait_for_pods(*own):
            node = pod["spec"]["nodeName"]
            inner.wait_for_amount(node, len(own[node]), GPU)
            advertised = re.findall(
                rf"{Code.ADVERTISED}: .* uuid=(GPU-[0-9a-f-]+)", agents.log(pod)
            )
            assert set(advertised) == own[node]
        minors = {gpu.uuid: gpu.minor for gpu in outer.node(OUTER).sim.gpus()}
        for node, uuids in own.items():
            inner.create(device_pod(f"leaf-of-{node}", node, {GPU: len(uuids)}))
        for node, uuids in own.items():
            inner.wait_for_pod(f"leaf-of-{node}")
            found = seen(inner, f"leaf-of-{node}")
            assert set(found.gpu_nodes) == {f"nvidia{minors[uuid]}" for uuid in uuids}
            # A leaf is not a node: it gets no list.
            assert "NVIDIA_ALLOCATED_DEVICES" not in found.variables


def allocated(outer: Cluster, pod: str) -> set[str]:
    return set(outer.pod_resources(OUTER)[pod, "node"][GPU])
