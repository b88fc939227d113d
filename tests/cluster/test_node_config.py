"""The configuration of a node: chosen by a label of the real Node, edited as a ConfigMap is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpuslice.codes import Code
from tests.surroundings import open_directly

from .harness import RESOURCE, Cluster, eventually
from .harness.daemonset import DaemonSetAgent, manifest
from .pods import check_devices, container_status, device_pod

NODE, NODE_PATH = "node-w", "/api/v1/nodes/node-w"
LABEL = "nvidia.com/device-plugin.config"
GPU, SHARED = "nvidia.com/gpu", "nvidia.com/gpu.shared"
MIXTURE = f"""\
version: v1
sharing:
  memory: {{devices: [0]}}
  timeSlicing:
    resources:
      - {{name: {GPU}, rename: {SHARED}, devices: [1], replicas: 2}}
"""


@pytest.fixture(autouse=True)
def without_label(nvidia: Cluster) -> Iterator[None]:
    yield
    set_label(nvidia, None)


def set_label(cluster: Cluster, value: str | None) -> None:
    cluster.kube.patch(NODE_PATH, {"metadata": {"labels": {LABEL: value}}})


def events_about_the_node(cluster: Cluster, text: str) -> list[str]:
    """Those of other tests are there as well."""
    found = cluster.events_about(NODE)
    return [event for event in found if event.startswith("Configuration") and text in event]


def configs() -> dict[str, str]:
    """The samples of the manifest."""
    [found] = [thing["data"] for thing in manifest() if thing["kind"] == "ConfigMap"]
    return dict(found)


def test_the_label_of_the_node_moves_it_to_another_configuration(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    whole.start({GPU: 4})
    set_label(nvidia, "shared")
    whole.wait_for({GPU: 0, SHARED: 16})
    nvidia.create(device_pod("replica", NODE, {SHARED: 1}))
    nvidia.wait_for_pod("replica")
    check_devices(nvidia, NODE, "replica")
    nvidia.delete_pods("replica")
    set_label(nvidia, None)
    whole.wait_for({GPU: 4, SHARED: 0})


def test_a_label_that_names_nothing_is_told_on_the_node_and_changes_nothing(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    set_label(nvidia, "shared")
    whole.start({SHARED: 16})
    nvidia.create(device_pod("replica", NODE, {SHARED: 1}))
    nvidia.wait_for_pod("replica")
    before = container_status(nvidia.wait_for_pod("replica", ready=True))
    set_label(nvidia, "shred")
    [event] = eventually(lambda: events_about_the_node(nvidia, "shred"), "the Node has the event")
    assert event.startswith(f"{Code.CONFIGURATION_NOT_FOUND}: ")
    assert "ConfigurationNotFound" in nvidia.kubectl("describe", "node", NODE)
    assert nvidia.amount(NODE, resource=SHARED) == 16
    assert container_status(nvidia.pod("replica")) == before
    set_label(nvidia, "default")
    whole.wait_for({GPU: 4, SHARED: 0})


def test_an_edit_of_the_config_map_is_followed_and_a_wrong_one_is_not(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    set_label(nvidia, "shared")
    whole.start({SHARED: 16})
    edited = configs()
    edited["shared"] = edited["shared"].replace("replicas: 4", "replicas: 2")
    whole.configs.update(**edited)
    whole.wait_for({SHARED: 8})
    with whole.logging(f"{Code.CONFIGURATION_INVALID}: "):
        whole.configs.update(**edited | {"shared": edited["shared"].replace("sharing", "shareing")})
    eventually(
        lambda: events_about_the_node(nvidia, "shareing"),
        "the Node has the event",
    )
    assert nvidia.amount(NODE, resource=SHARED) == 8
    # The kubelet does not restart such an agent, and a rollout does not go on to other nodes.
    assert probe(whole, "livenessProbe") == 200
    assert probe(whole, "readinessProbe") == 503
    with whole.logging(f"{Code.SETTINGS_APPLIED}: "):
        whole.configs.update(**edited)
    eventually(lambda: probe(whole, "readinessProbe") == 200, "the agent is ready again")
    assert nvidia.amount(NODE, resource=SHARED) == 8


def test_only_what_changed_is_served_anew(nvidia: Cluster, whole: DaemonSetAgent) -> None:
    whole.start({GPU: 2, SHARED: 2, RESOURCE: 15}, config=MIXTURE)
    held = {"whole": GPU, "memory": RESOURCE}
    for name, resource in held.items():
        nvidia.create(device_pod(name, NODE, {resource: 1}))
    containers = {name: container_status(nvidia.wait_for_pod(name))["containerID"] for name in held}
    sockets = inodes(whole)
    renamed = MIXTURE.replace("gpu.shared", "gpu.sliced").replace("replicas: 2", "replicas: 5")
    whole.configs.update(**configs() | {"default": renamed})
    whole.wait_for({GPU: 2, SHARED: 0, RESOURCE: 15, "nvidia.com/gpu.sliced": 5})
    after = inodes(whole)
    assert sockets.pop("nvidia-gpu.shared.sock")
    assert after.pop("nvidia-gpu.sliced.sock")
    assert after == sockets
    for name, container in containers.items():
        status = container_status(nvidia.pod(name))
        assert (status["containerID"], status["restartCount"]) == (container, 0)
        check_devices(nvidia, NODE, name)


def probe(agent: DaemonSetAgent, name: str) -> int:
    """As the kubelet does it for the manifest's pod."""
    path = agent.container[name]["httpGet"]["path"]
    return open_directly(f"http://{agent.metrics_address}{path}")[0]


def inodes(agent: DaemonSetAgent) -> dict[str, int]:
    """The sockets of the agent; a new one would be another file."""
    found = agent.node.device_plugins.glob("*.sock")
    return {path.name: path.stat().st_ino for path in found if path.name != "kubelet.sock"}
