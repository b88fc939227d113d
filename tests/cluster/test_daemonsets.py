"""deploy/manifests as administrators apply them: our image, in pods, under the real kubelet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from deploy.image import image_name, read_project
from gpuslice_sim.node import PLACE_IN_CONTAINERS
from tests.peers.build import Say

from .build import Binaries
from .harness import Cluster, NodeSpec, eventually
from .harness.daemonset import CDI_PATCH, patch_pod
from .harness.deployment import Deployment
from .harness.kube import Object
from .harness.node import MPS_PIPE
from .pods import (
    check_devices,
    check_nothing_is_double_booked,
    check_slice,
    container_status,
    device_pod,
    slice_pod,
)

MANIFESTS = Path(__file__).parents[2] / "deploy" / "manifests"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
EXTERNAL_MPS_PATCH = MANIFESTS.parent / "patches" / "agent-external-mps.yaml"
CONFIG_LABEL = "nvidia.com/device-plugin.config"
MIB = 1 << 20


@pytest.fixture(scope="module")
def nodes(binaries: Binaries, say: Say, image_archive: Path) -> Iterator[Cluster]:
    """Two nodes with MPS and our image, and nothing of ours running."""
    specs = [NodeSpec(name, agent=()) for name in ("node-a", "node-b")]
    with Cluster(specs, binaries=binaries, say=say) as cluster:
        for node in cluster.nodes:
            node.import_images([image_archive])
        yield cluster


@pytest.fixture
def cluster(nodes: Cluster) -> Iterator[Cluster]:
    yield nodes
    nodes.delete_pods()
    for node in nodes.nodes:
        set_labels(nodes, node.name, **{"gpushare": None, CONFIG_LABEL: None})


def manifest(name: str) -> list[Object]:
    """An administrator would only have chosen another pipe directory."""
    text = (MANIFESTS / name).read_text().replace("/root/nvidia-mps", MPS_PIPE)
    return list(yaml.safe_load_all(text))


def external_agent() -> list[Object]:
    """agent.yaml with the patch for MPS that runs on the nodes already."""
    things = [*manifest("rbac.yaml"), *manifest("agent.yaml")]
    for thing in things:
        if thing["kind"] == "DaemonSet":
            patch_pod(thing["spec"]["template"]["spec"], EXTERNAL_MPS_PATCH)
    return things


def with_variables(things: list[Object], **variables: str) -> list[Object]:
    for thing in things:
        if thing["kind"] == "DaemonSet":
            [container] = thing["spec"]["template"]["spec"]["containers"]
            kept = [entry for entry in container["env"] if entry["name"] not in variables]
            added = [{"name": name, "value": value} for name, value in variables.items()]
            container["env"] = kept + added
    return things


def set_labels(cluster: Cluster, node: str, **labels: str | None) -> None:
    cluster.kube.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": labels}})


def test_gpushares_daemonset_serves_the_nodes_that_have_its_label(cluster: Cluster) -> None:
    set_labels(cluster, "node-a", gpushare="true")
    with Deployment(cluster, [*manifest("rbac.yaml"), *manifest("gpushare.yaml")]) as plugin:
        plugin.wait_for_pods("node-a")
        cluster.wait_for_amount("node-a", 30)
        cluster.create(slice_pod("train", 6))
        cluster.wait_for_pod("train")
        check_slice(cluster, "node-a", "train", 6)
        assert cluster.amount("node-b") == 0


def test_an_upgrade_of_the_agent_leaves_pods_alone_and_books_nothing_twice(
    cluster: Cluster,
) -> None:
    with Deployment(cluster, external_agent()) as agents:
        agents.wait_for_pods("node-a", "node-b")
        for node in ("node-a", "node-b"):
            cluster.wait_for_amount(node, 14)
        cluster.create(slice_pod("before", 9))
        cluster.wait_for_pod("before")
        first = container_status(cluster.pod("before"))
        agents.restart()
        cluster.wait_for_amount("node-a", 9 + 14)
        cluster.create(slice_pod("after", 9))
        cluster.wait_for_pod("after")
        assert container_status(cluster.pod("before")) == first
        for name in ("before", "after"):
            check_slice(cluster, "node-a", name, 9)
        check_nothing_is_double_booked(cluster, "node-a")


def test_the_kubelet_starts_an_agent_again_that_was_killed(cluster: Cluster) -> None:
    with Deployment(cluster, external_agent()) as agents:
        [pod, _] = agents.wait_for_pods("node-a", "node-b")
        node = pod["spec"]["nodeName"]
        cluster.wait_for_amount(node, 14)
        cluster.node(node).run(["pkill", "-KILL", "-f", "gpuslice agent"])

        def restarted() -> bool:
            pods = [p for p in agents.pods() if p["spec"]["nodeName"] == node]
            return any(container_status(p)["restartCount"] == 1 for p in pods)

        eventually(restarted, "the kubelet has started the container again")
        cluster.wait_for_amount(node, 14)
        cluster.create(slice_pod("train", 6, node))
        cluster.wait_for_pod("train")
        check_slice(cluster, node, "train", 6)


def test_nvidias_daemonset_follows_the_label_of_the_node_with_the_rights_of_its_account(
    cluster: Cluster,
) -> None:
    things = with_variables(manifest("nvidia.yaml"), GPUSLICE_LABELS="node")
    things += manifest("nvidia-labels.yaml")
    with Deployment(cluster, things) as plugin:
        plugin.wait_for_pods("node-a", "node-b")  # ready: by the kubelet's own probes
        for node in ("node-a", "node-b"):
            cluster.wait_for_amount(node, 2, resource=GPU)
        cluster.create(device_pod("whole", "node-a", {GPU: 1}))
        cluster.wait_for_pod("whole")
        check_devices(cluster, "node-a", "whole")

        set_labels(cluster, "node-b", **{CONFIG_LABEL: "shared"})
        cluster.wait_for_amount("node-b", 8, resource=SHARED)
        cluster.create(device_pod("replica", "node-b", {SHARED: 1}))
        cluster.wait_for_pod("replica")
        check_devices(cluster, "node-b", "replica")
        assert cluster.amount("node-a", resource=GPU) == 2

        set_labels(cluster, "node-b", **{CONFIG_LABEL: "shred"})
        eventually(
            lambda: [
                e for e in cluster.events_about("node-b") if e.startswith("ConfigurationNotFound")
            ],
            "the Node has an event about the label",
        )
        set_labels(cluster, "node-b", **{CONFIG_LABEL: "shared"})

        def replicas() -> dict[str, str | None]:
            nodes = [node["metadata"] for node in cluster.kube.items("/api/v1/nodes")]
            return {node["name"]: node["labels"].get("nvidia.com/gpu.replicas") for node in nodes}

        eventually(lambda: replicas() == {"node-a": "1", "node-b": "4"}, "the nodes are labelled")


def test_nvidias_daemonset_gives_devices_by_cdi_from_a_driver_elsewhere(cluster: Cluster) -> None:
    """As with a driver that is itself a container: its root is not the node's."""
    root = f"{PLACE_IN_CONTAINERS}/root"
    plain = manifest("nvidia.yaml")
    for thing in plain:
        if thing["kind"] == "DaemonSet":
            patch_pod(thing["spec"]["template"]["spec"], CDI_PATCH)
    things = with_variables(
        plain,
        DEVICE_LIST_STRATEGY="cdi-cri",
        NVIDIA_DRIVER_ROOT=root,
        NVIDIA_CDI_HOOK_PATH=str(cluster.binaries.peers.cdi_hook),
    )
    for thing in things:
        if thing["kind"] == "DaemonSet":
            for volume in thing["spec"]["template"]["spec"]["volumes"]:
                if volume["name"] == "driver-root":
                    volume["hostPath"]["path"] = root
    with Deployment(cluster, things) as plugin:
        plugin.wait_for_pods("node-a", "node-b")
        cluster.wait_for_amount("node-a", 2, resource=GPU)
        cluster.create(device_pod("one", "node-a", {GPU: 1}, runtime_class=None))
        cluster.wait_for_pod("one")
        check_devices(cluster, "node-a", "one")


@pytest.fixture
def without_mps(nodes: Cluster) -> Iterator[str]:
    """A node on which nobody else uses the GPUs."""
    node = nodes.node("node-b")
    node.mps.stop()
    yield node.name
    node.mps.start()


MERGEABLE = f"""\
version: v1
sharing:
  mps:
    failRequestsGreaterThanOne: false
    advertise: all
    resources: [{{name: {GPU}, rename: {SHARED}, replicas: 4}}]
"""


def test_nvidias_mps_daemonset_makes_replicas_of_a_gpu_add_up(
    cluster: Cluster, without_mps: str
) -> None:
    plugin = manifest("nvidia.yaml")
    [configs] = [thing["data"] for thing in plugin if thing["kind"] == "ConfigMap"]
    configs["merged"] = MERGEABLE
    set_labels(cluster, without_mps, **{CONFIG_LABEL: "merged"})
    with Deployment(cluster, plugin), Deployment(cluster, manifest("nvidia-mps.yaml")) as daemons:
        daemons.wait_for_pods("node-a", "node-b")
        cluster.wait_for_amount(without_mps, 8, resource=SHARED)
        for name, replicas in (("one", 1), ("three", 3)):
            cluster.create(device_pod(name, without_mps, {SHARED: replicas}, mps=True))
            cluster.wait_for_pod(name)
            found = check_devices(cluster, without_mps, name)
            gpu = cluster.node(without_mps).sim.gpu(found.device["uuid"])
            limit = gpu.memory_total_bytes // MIB // 4 * MIB * replicas
            assert found.report["mps"] is True
            assert found.device["limit_bytes"] == limit
            assert found.device["sms"] == gpu.sms // 4 * replicas
        cluster.delete_pods()
    for gpu in cluster.node(without_mps).sim.gpus():
        assert gpu.compute_mode == 0  # nobody has to set it back by hand


def test_the_plainest_manifest_of_nvidias_plugin_needs_no_more_than_our_image(
    cluster: Cluster,
) -> None:
    """No command, no account, no configuration: the image's own program with its defaults."""
    labels = {"name": "nvidia-device-plugin-ds"}
    place = "/var/lib/kubelet/device-plugins"
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": image_name(read_project()),
        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "volumeMounts": [{"name": "device-plugin", "mountPath": place}],
    }
    daemon_set = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin-daemonset", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "runtimeClassName": "nvidia",
                    "priorityClassName": "system-node-critical",
                    "containers": [container],
                    "volumes": [{"name": "device-plugin", "hostPath": {"path": place}}],
                },
            },
        },
    }
    with Deployment(cluster, [daemon_set]) as plugin:
        plugin.wait_for_pods("node-a", "node-b")
        cluster.wait_for_amount("node-b", 2, resource=GPU)
        cluster.create(device_pod("pair", "node-b", {GPU: 2}))
        cluster.wait_for_pod("pair")
        check_devices(cluster, "node-b", "pair")
