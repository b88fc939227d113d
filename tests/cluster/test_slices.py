"""What a pod gets: its GPU, its memory, its share of the multiprocessors."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code

from .harness import RESOURCE, Client, Cluster, ExistingCluster, eventually
from .pods import (
    check_nothing_is_double_booked,
    check_received,
    check_slice,
    container,
    event,
    pod,
    restart_container,
    seen,
    short_container,
    slice_pod,
    spread_evenly,
)


def test_a_node_shows_its_gpu_memory(client: Client) -> None:
    for field in ("capacity", "allocatable"):
        if isinstance(client, ExistingCluster):
            assert client.amount(client.gpu_node, field) >= client.least_units
        else:
            assert client.amount("node-a", field) == 2 * 15
            assert client.amount("node-b", field) == 4 * 44


@pytest.mark.parametrize(("units", "sms"), [(1, 2), (6, 16), (15, 40)])
def test_a_pod_is_held_to_its_slice_of_one_gpu(client: Client, units: int, sms: int) -> None:
    existing = isinstance(client, ExistingCluster)
    if existing and units > ExistingCluster.least_units:
        pytest.skip(f"not every GPU has {units} {RESOURCE}")
    client.create(slice_pod("train", units, client.gpu_node, image=client.image))
    client.wait_for_pod("train")
    found = check_slice(client, client.gpu_node, "train", units)
    assert existing or found.device["sms"] == sms


def test_a_container_cannot_allocate_more_than_its_slice(cluster: Cluster) -> None:
    cluster.create(slice_pod("train", 6))
    cluster.wait_for_pod("train")
    seen(cluster, "train")
    text = cluster.kubectl("exec", "train", "--", "sh", "-c", "simcuda alloc 7GiB || true")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text


def test_two_containers_of_a_pod_have_a_slice_each(client: Client) -> None:
    sizes = {"one": 4, "two": 2}
    containers = [container(units, name, image=client.image) for name, units in sizes.items()]
    client.create(pod("pair", *containers, node=client.gpu_node))
    client.wait_for_pod("pair")
    for name, units in sizes.items():
        check_slice(client, client.gpu_node, "pair", units, name)
    if isinstance(client, Cluster):
        check_nothing_is_double_booked(client, client.gpu_node)


def test_an_init_container_and_the_app_after_it_are_held_to_their_slices(client: Client) -> None:
    app = container(3, "app", image=client.image)
    first = short_container(6, "first", image=client.image)
    client.create(pod("steps", app, init=[first], node=client.gpu_node))
    client.wait_for_pod("steps")
    check_received(client, "steps", 6, "first")
    check_slice(client, client.gpu_node, "steps", 3, "app")


def test_a_restarted_container_keeps_its_slice(client: Client) -> None:
    units = 3 if isinstance(client, ExistingCluster) else 8
    for name in ("one", "two"):
        client.create(slice_pod(name, units, client.gpu_node, image=client.image))
        client.wait_for_pod(name)
    before = check_slice(client, client.gpu_node, "one", units)
    restart_container(client, "one")
    after = check_slice(client, client.gpu_node, "one", units)
    assert after.gpu_nodes == before.gpu_nodes


def test_a_pod_without_a_slice_sees_no_gpu(cluster: Cluster) -> None:
    cluster.create(pod("plain", container(0, command=["sh", "-c", "ls /dev; echo {}; sleep 1000"])))
    cluster.wait_for_pod("plain")
    assert seen(cluster, "plain").gpu_nodes == ()


def test_a_pod_that_fits_no_node_waits_with_the_schedulers_message(client: Client) -> None:
    client.create(slice_pod("huge", 10_000, node=None, image=client.image))

    def refusals() -> list[str]:
        return [event for event in client.events("huge") if event.startswith("FailedScheduling")]

    # The first may tell of a node that has just been restarted and is not ready.
    nodes = "" if isinstance(client, ExistingCluster) else "2 "
    eventually(
        lambda: any(f"{nodes}Insufficient {RESOURCE}" in event for event in refusals()),
        "the scheduler has spoken",
        explain=lambda: "\n".join(refusals()),
    )
    assert client.pod("huge")["status"]["phase"] == "Pending"


def test_a_slice_that_would_span_gpus_is_refused_with_our_sentence(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.create(slice_pod(name, 10))
        cluster.wait_for_pod(name)
    cluster.create(slice_pod("wide", 8))  # 10 units are free, 5 on each GPU
    refused = cluster.wait_for_pod("wide", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    told = event(cluster, "wide", "UnexpectedAdmissionError")
    assert f"{Code.SPANS_GPUS}: " in told
    assert "no single GPU of this node has 8 GiB free" in told
    assert "Request less, or wait until another pod ends" in told


def test_thirty_pods_at_once_all_get_the_gpu_that_the_kubelet_says(cluster: Cluster) -> None:
    # Half of them go to each node. However they are dealt and in whatever order they come, the
    # 15 largest leave node-a, of two GPUs with 15 units, one GPU with room for each: at most 28
    # units in all, and never fewer than 5 free before one of 3, or 4 before one of 2.
    sizes = {f"pod-{number:02}": _mixed_size(number) for number in range(30)}
    for name, units in sizes.items():
        cluster.create(spread_evenly(slice_pod(name, units, node=None)))
    for name, units in sizes.items():
        placed = cluster.wait_for_pod(name)
        check_slice(cluster, placed["spec"]["nodeName"], name, units)
    for node in cluster.nodes:
        check_nothing_is_double_booked(cluster, node.name)


def _mixed_size(number: int) -> int:
    """Of thirty: four of 3 units, five of 2, the others of 1."""
    if number % 8 == 0:
        return 3
    return 2 if number % 6 == 1 else 1
