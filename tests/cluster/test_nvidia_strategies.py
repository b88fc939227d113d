"""In place of NVIDIA's device plugin: whole GPUs, in every way a container can be told of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .harness import Cluster
from .harness.daemonset import DaemonSetAgent
from .pods import check_devices, device_pod, seen

NODE, GPU = "node-w", "nvidia.com/gpu"
CDI = ("cdi-annotations", "cdi-cri")


@pytest.fixture(autouse=True)
def runtime(whole: DaemonSetAgent) -> Iterator[None]:
    """Takes lists of devices from mounts too, which is not its default."""
    whole.node.set_runtime_options(accept_nvidia_visible_devices_as_volume_mounts=True)
    yield
    whole.node.set_runtime_options()


@pytest.mark.parametrize("ids", ["uuid", "index"])
@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", *CDI])
def test_a_container_sees_its_own_gpus_alone(
    nvidia: Cluster, whole: DaemonSetAgent, strategy: str, ids: str
) -> None:
    whole.start({GPU: 4}, DEVICE_LIST_STRATEGY=strategy, DEVICE_ID_STRATEGY=ids)
    for name, count in (("one", 1), ("two", 2)):
        nvidia.create(device_pod(name, NODE, {GPU: count}))
    nodes: list[str] = []
    for name, count in (("one", 1), ("two", 2)):
        nvidia.wait_for_pod(name)
        found = check_devices(nvidia, NODE, name)
        assert len(found.gpu_nodes) == count
        nodes += found.gpu_nodes
    assert len(set(nodes)) == 3
    # NVIDIA's hooks have done their part.
    link = f"{found.variables['NVIDIA_CTK_LIBCUDA_DIR']}/libcuda.so"
    assert nvidia.kubectl("exec", "two", "--", "readlink", link) == "libcuda.so.1\n"


@pytest.mark.parametrize("strategy", CDI)
def test_with_cdi_the_gpu_comes_without_nvidias_runtime(
    nvidia: Cluster, whole: DaemonSetAgent, strategy: str
) -> None:
    whole.start({GPU: 4}, DEVICE_LIST_STRATEGY=strategy)
    nvidia.create(device_pod("plain", NODE, {GPU: 1}, runtime_class=None))
    nvidia.wait_for_pod("plain")
    assert "nvidiactl" in check_devices(nvidia, NODE, "plain").text


def test_device_nodes_come_by_the_kubelet_if_it_is_told_of_them(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    whole.start({GPU: 4}, PASS_DEVICE_SPECS="true")
    nvidia.create(device_pod("plain", NODE, {GPU: 2}, runtime_class=None))
    nvidia.create(device_pod("both", NODE, {GPU: 1}))
    for name in ("plain", "both"):
        nvidia.wait_for_pod(name)
        assert "nvidiactl" in check_devices(nvidia, NODE, name).text


def test_a_runtime_that_distrusts_variables_gives_gpus_by_mounts_only(
    nvidia: Cluster, whole: DaemonSetAgent
) -> None:
    whole.node.set_runtime_options(
        accept_nvidia_visible_devices_envvar_when_unprivileged=False,
        accept_nvidia_visible_devices_as_volume_mounts=True,
    )
    whole.start({GPU: 4})
    nvidia.create(device_pod("by-variable", NODE, {GPU: 1}))
    nvidia.wait_for_pod("by-variable")
    assert seen(nvidia, "by-variable").gpu_nodes == ()
    whole.start({GPU: 4}, DEVICE_LIST_STRATEGY="volume-mounts")
    nvidia.create(device_pod("by-mounts", NODE, {GPU: 1}))
    nvidia.wait_for_pod("by-mounts")
    assert len(check_devices(nvidia, NODE, "by-mounts").gpu_nodes) == 1
    # Without a request there is nothing to see, whatever the pod writes into its environment.
    forger = device_pod("forger", NODE, {})
    forger["spec"]["containers"][0]["env"] = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    nvidia.create(forger)
    nvidia.wait_for_pod("forger")
    assert seen(nvidia, "forger").gpu_nodes == ()
