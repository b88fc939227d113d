"""Labels of GPUs at the real API server, with the rights of deploy/manifests/nvidia.yaml."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Cluster, Object, eventually
from .harness.daemonset import ACCOUNT, NAMESPACE, DaemonSetAgent
from .pods import container, pod

NODE, GPU = "node-m", "nvidia.com/gpu"
FEATURES = f"/apis/nfd.k8s-sigs.io/v1alpha1/namespaces/{NAMESPACE}/nodefeatures"
# As much of node-feature-discovery's definition as an object of it needs.
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "nodefeatures.nfd.k8s-sigs.io"},
    "spec": {
        "group": "nfd.k8s-sigs.io",
        "names": {"kind": "NodeFeature", "plural": "nodefeatures", "singular": "nodefeature"},
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "labels": {
                                        "type": "object",
                                        "additionalProperties": {"type": "string"},
                                    },
                                    "features": {
                                        "type": "object",
                                        "x-kubernetes-preserve-unknown-fields": True,
                                    },
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


def labels_of_the_node(cluster: Cluster) -> dict[str, str]:
    return dict(cluster.kube.get(f"/api/v1/nodes/{NODE}")["metadata"]["labels"])


def check_values(labels: dict[str, str]) -> None:
    assert labels["nvidia.com/gpu.product"] == "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"
    assert labels["nvidia.com/gpu.count"] == "14"
    assert labels["nvidia.com/mig.strategy"] == "single"
    assert labels["nvidia.com/cuda.driver-version.major"] == "570"


def test_the_node_is_labelled_and_what_others_wrote_stays(
    nvidia: Cluster, cut: DaemonSetAgent
) -> None:
    foreign = {"nvidia.com/gpu.deploy.operands": "true", "example.com/rack": "7"}
    stale = {"nvidia.com/mig-2g.10gb.count": "3"}
    path = f"/api/v1/nodes/{NODE}"
    nvidia.kube.patch(path, {"metadata": {"labels": foreign | stale}})
    cut.start({GPU: 14}, MIG_STRATEGY="single", GPUSLICE_LABELS="node")
    eventually(
        lambda: not stale.keys() & labels_of_the_node(nvidia).keys(),
        "the Node is labelled, and old labels are gone",
        explain=cut.node.agent.tail,
    )
    labels = labels_of_the_node(nvidia)
    check_values(labels)
    assert foreign.items() <= labels.items()


@pytest.fixture
def daemon_set(nvidia: Cluster) -> Iterator[Object]:
    """What the agent's pod would belong to, and with it the labels; gives the pod."""
    labels = {"name": "labels-owner"}
    idle = pod("", container(0, command=["sleep", "1000"]), node=NODE)
    template = {"metadata": {"labels": labels}, "spec": idle["spec"]}
    thing: Object = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "labels-owner", "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": labels}, "template": template},
    }
    nvidia.kube.create(thing)
    pods = f"/api/v1/namespaces/{NAMESPACE}/pods"
    [made] = eventually(
        lambda: nvidia.kube.items(pods, labelSelector="name=labels-owner"), "it has its pod"
    )
    yield made
    nvidia.kube.delete(f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets/labels-owner")


def test_a_node_feature_is_kept_for_node_feature_discovery(
    nvidia: Cluster, cut: DaemonSetAgent, daemon_set: Object
) -> None:
    nvidia.apply(DEFINITION)
    nvidia.kubectl(
        "wait", "--for=condition=Established", "--timeout=180s", "crd/nodefeatures.nfd.k8s-sigs.io"
    )
    name = daemon_set["metadata"]["name"]
    cut.start({GPU: 14}, MIG_STRATEGY="single", GPUSLICE_LABELS="node-feature", POD_NAME=name)
    path = f"{FEATURES}/nvidia-features-for-{NODE}"
    found = eventually(
        lambda: nvidia.kube.find(path), "the object is there", explain=cut.node.agent.tail
    )
    check_values(found["spec"]["labels"])
    assert found["metadata"]["labels"]["nfd.node.kubernetes.io/node-name"] == NODE
    above = daemon_set["metadata"]["ownerReferences"][0]["uid"]
    owners = {(o["kind"], o["uid"]) for o in found["metadata"]["ownerReferences"]}
    assert owners == {("DaemonSet", above), ("Pod", daemon_set["metadata"]["uid"])}
    nvidia.kube.patch(path, {"spec": {"labels": {"nvidia.com/gpu.count": "99"}}})
    cut.start({GPU: 14}, MIG_STRATEGY="single", GPUSLICE_LABELS="node-feature", POD_NAME=name)
    eventually(
        lambda: nvidia.kube.get(path)["spec"]["labels"]["nvidia.com/gpu.count"] == "14",
        "the new agent has put it right",
        explain=cut.node.agent.tail,
    )


@pytest.mark.parametrize(
    "wish", ["delete nodes", "list secrets", "list pods", "create pods", "update nodes/status"]
)
def test_the_account_of_the_agent_may_do_nothing_else(nvidia: Cluster, wish: str) -> None:
    verb, resource = wish.split()
    account = f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}"
    with pytest.raises(RuntimeError):  # kubectl says no, and exits with 1
        nvidia.kubectl("auth", "can-i", verb, resource, f"--as={account}", "--all-namespaces")
