"""Which container is starting."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.slicing.holders import (
    Holder,
    Starting,
    other_resources,
    pod_uid,
    starting_container,
)


def holder(pod: str, container: str, *ids: str) -> Holder:
    return Holder(pod, container, frozenset(ids))


def find(
    ids: Sequence[str], listed: Sequence[Holder], recorded: Sequence[Holder] = ()
) -> Starting | None:
    return starting_container(ids, listed, lambda: recorded)


TWO = (holder("default/a", "one", "1", "2"), holder("default/a", "two", "3"))
OTHER = holder("default/b", "main", "4")


def test_a_container_is_found_by_its_devices_in_any_order() -> None:
    assert find(["2", "1"], (*TWO, OTHER)) == Starting("default/a", "one", 3)
    assert find(["4"], (*TWO, OTHER)) == Starting("default/b", "main", 1)


def test_an_init_container_is_found_by_devices_that_it_leaves_to_the_app() -> None:
    assert find(["1", "2", "3", "7", "8"], (*TWO, OTHER)) == Starting("default/a", None, 5)


def test_an_init_container_with_devices_of_its_own_is_in_the_checkpoint() -> None:
    recorded = (holder("uid", "first", "5", "6"),)
    assert find(["5", "6"], (OTHER,), recorded) == Starting("uid", "first", 2, is_named=False)


def test_devices_that_overlap_two_pods_are_found_in_the_checkpoint_only() -> None:
    ids = ["3", "4"]
    assert find(ids, (*TWO, OTHER)) is None
    recorded = (holder("uid", "first", *ids), holder("uid", "main", "3"))
    assert find(ids, (*TWO, OTHER), recorded) == Starting("uid", "first", 2, is_named=False)


def test_a_pod_that_has_ended_and_is_still_listed_does_not_count() -> None:
    ended = holder("default/ended", "main", "4")
    assert find(["4"], (ended, OTHER)) is None
    recorded = (holder("uid", "main", "4"), holder("uid", "side", "9"))
    assert find(["4"], (ended, OTHER), recorded) == Starting("uid", "main", 2, is_named=False)


def test_without_a_list_the_checkpoint_decides_if_it_is_unambiguous() -> None:
    first, app = holder("uid", "first", "1"), holder("uid", "app", "1")
    assert find(["1"], (), (first, app)) == Starting("uid", None, 1, is_named=False)
    assert find(["1"], (), (first, holder("other", "app", "1"))) is None
    assert find(["1"], ()) is None


def test_the_checkpoint_is_not_read_if_the_list_is_unambiguous() -> None:
    def read() -> Sequence[Holder]:
        pytest.fail("read")

    assert starting_container(["4"], (*TWO, OTHER), read) is not None


@given(st.lists(st.integers(1, 5), min_size=1, max_size=30))
def test_any_number_of_pods_at_once_are_told_apart(sizes: list[int]) -> None:
    """Also pods of equal size: each id belongs to one container."""
    listed, used = [], 0
    for number, size in enumerate(sizes):
        listed.append(holder(f"default/{number}", "main", *map(str, range(used, used + size))))
        used += size
    for one in listed:
        assert find(sorted(one.ids), listed) == Starting(one.pod, "main", len(one.ids))


def test_other_resources_are_those_of_the_same_container() -> None:
    holders = {
        "large": (holder("p", "one", "1"), holder("q", "main", "2")),
        "small": (holder("p", "one", "3"), holder("p", "two", "4"), holder("r", "main", "5")),
        "whole": (holder("q", "main", "6"),),
    }
    limited = ["large", "small"]
    assert other_resources("large", ["1"], holders, limited) == {"small"}
    assert other_resources("small", ["3"], holders, limited) == {"large"}
    for resource, device in (("large", "2"), ("small", "4"), ("small", "5"), ("large", "9")):
        assert other_resources(resource, [device], holders, limited) == set()


def test_the_uid_is_known_if_one_pod_holds_the_devices() -> None:
    recorded = (
        holder("u", "first", "1", "2"),
        holder("u", "main", "1", "2"),
        holder("v", "x", "3"),
    )
    assert pod_uid(["2", "1"], recorded) == "u"
    assert pod_uid(["1"], recorded) is None
    assert pod_uid(["3"], (*recorded, holder("w", "x", "3"))) is None
