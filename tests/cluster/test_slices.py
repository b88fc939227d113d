"""What a pod gets: its GPU, its memory, its share of the multiprocessors."""

from __future__ import annotations

import pytest

from .harness import RESOURCE, Cluster, eventually
from .pods import (
    check_nothing_is_double_booked,
    check_slice,
    container,
    pod,
    seen,
    short_container,
    slice_pod,
)


def test_a_node_shows_its_gpu_memory(cluster: Cluster) -> None:
    for field in ("capacity", "allocatable"):
        assert cluster.amount("node-a", field) == 2 * 15
        assert cluster.amount("node-b", field) == 4 * 44


@pytest.mark.parametrize(("units", "sms"), [(1, 2), (6, 16), (15, 40)])
def test_a_pod_is_held_to_its_slice_of_one_gpu(cluster: Cluster, units: int, sms: int) -> None:
    cluster.create(slice_pod("train", units))
    cluster.wait_for_pod("train")
    assert check_slice(cluster, "node-a", "train", units).device["sms"] == sms


def test_a_container_cannot_allocate_more_than_its_slice(cluster: Cluster) -> None:
    cluster.create(slice_pod("train", 6))
    cluster.wait_for_pod("train")
    seen(cluster, "train")
    text = cluster.kubectl("exec", "train", "--", "sh", "-c", "simcuda alloc 7GiB || true")
    assert "CUDA_ERROR_OUT_OF_MEMORY" in text


def test_two_containers_of_a_pod_have_a_slice_each(cluster: Cluster) -> None:
    cluster.create(pod("pair", container(9, "one"), container(4, "two"), node="node-a"))
    cluster.wait_for_pod("pair")
    check_slice(cluster, "node-a", "pair", 9, "one")
    check_slice(cluster, "node-a", "pair", 4, "two")
    check_nothing_is_double_booked(cluster, "node-a")


def test_an_init_container_and_the_app_after_it_are_held_to_their_slices(cluster: Cluster) -> None:
    app, first = container(3, "app"), short_container(8, "first")
    cluster.create(pod("steps", app, init=[first], node="node-a"))
    cluster.wait_for_pod("steps")
    assert seen(cluster, "steps", "first").device["limit_bytes"] == 8 << 30
    check_slice(cluster, "node-a", "steps", 3, "app")


def test_a_pod_without_a_slice_sees_no_gpu(cluster: Cluster) -> None:
    cluster.create(pod("plain", container(0, command=["sh", "-c", "ls /dev; echo {}; sleep 1000"])))
    cluster.wait_for_pod("plain")
    assert seen(cluster, "plain").gpu_nodes == ()


def test_a_pod_that_fits_no_node_waits_with_the_schedulers_message(cluster: Cluster) -> None:
    cluster.create(slice_pod("huge", 1000, node=None))

    def refusals() -> list[str]:
        return [event for event in cluster.events("huge") if event.startswith("FailedScheduling")]

    [event, *_] = eventually(refusals, "the scheduler has spoken")
    assert f"2 Insufficient {RESOURCE}" in event
    assert cluster.pod("huge")["status"]["phase"] == "Pending"


def test_a_slice_that_would_span_gpus_is_refused_with_our_sentence(cluster: Cluster) -> None:
    for name in ("left", "right"):
        cluster.create(slice_pod(name, 10))
        cluster.wait_for_pod(name)
    cluster.create(slice_pod("wide", 8))  # 10 units are free, 5 on each GPU
    refused = cluster.wait_for_pod("wide", "Failed")
    assert refused["status"]["reason"] == "UnexpectedAdmissionError"
    [event] = [e for e in cluster.events("wide") if e.startswith("UnexpectedAdmissionError")]
    assert "no single GPU of this node has 8 GiB free" in event
    assert "Ask for less, or wait until memory is freed" in event


def test_thirty_pods_at_once_all_get_the_gpu_that_the_kubelet_says(cluster: Cluster) -> None:
    sizes = {f"pod-{number:02}": number % 3 + 1 for number in range(30)}
    for name, units in sizes.items():
        cluster.create(slice_pod(name, units, node=None))
    for name, units in sizes.items():
        placed = cluster.wait_for_pod(name, timeout=120)
        check_slice(cluster, placed["spec"]["nodeName"], name, units)
    for node in cluster.nodes:
        check_nothing_is_double_booked(cluster, node.name)
