"""Devices are in use from Allocate on, and the kubelet's list is the truth."""

from __future__ import annotations

from gpuslice.node.usage import Usage

GPU, MEM = "nvidia.com/gpu", "aliyun.com/gpu-mem"


def lists(usage: Usage, **devices: str) -> None:
    """The kubelet lists these devices of nvidia.com/gpu."""
    usage.list_started()
    usage.listed({GPU: frozenset(devices.values())} if devices else {})


def test_usage_is_unknown_until_the_kubelet_was_read() -> None:
    usage = Usage()
    usage.allocated(GPU, ["a"])
    seen = [usage.in_use]
    lists(usage, one="b")
    seen.append(usage.in_use)
    usage.unknown()
    seen.append(usage.in_use)
    assert seen == [None, {GPU: frozenset("ab")}, None]


def test_a_device_is_in_use_as_soon_as_it_is_allocated() -> None:
    usage = Usage()
    lists(usage)
    usage.allocated(MEM, ["a", "b"])
    assert usage.in_use == {MEM: frozenset("ab")}


def test_a_device_that_the_kubelet_lists_is_free_when_it_is_not_listed_any_more() -> None:
    usage = Usage()
    lists(usage)
    usage.allocated(GPU, ["a"])
    lists(usage, one="a")
    assert usage.in_use == {GPU: frozenset("a")}
    lists(usage)
    assert usage.in_use == {}


def test_a_device_that_is_allocated_during_a_list_is_not_missed_by_it() -> None:
    usage = Usage()
    lists(usage)
    usage.list_started()
    usage.allocated(GPU, ["a"])
    usage.listed({})
    lists(usage)
    assert usage.in_use == {GPU: frozenset("a")}


def test_a_device_that_the_kubelet_never_lists_is_free_again() -> None:
    usage = Usage()
    lists(usage)
    usage.allocated(GPU, ["a"])
    lists(usage)
    assert usage.in_use == {GPU: frozenset("a")}
    lists(usage)
    assert usage.in_use == {}


def test_a_device_that_the_kubelet_regards_as_free_is_free_at_once() -> None:
    usage = Usage()
    lists(usage, one="a", two="b")
    usage.allocated(GPU, ["c"])
    usage.available(GPU, {"a", "c", "d"})
    assert usage.in_use == {GPU: frozenset("b")}
