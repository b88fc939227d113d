from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.slicing.topology import Topology
from gpuslice.slicing.topology_search import closest

Scores = dict[tuple[int, int], int]


def names(count: int) -> list[str]:
    return [f"GPU-{n:02}" for n in range(count)]


def topology(scores: Scores) -> Topology:
    return Topology({(f"GPU-{a:02}", f"GPU-{b:02}"): s for (a, b), s in scores.items()})


def linked(count: int, *groups: set[int], apart: int = 10, together: int = 300) -> Topology:
    """GPUs joined by NVLink within the groups, and by the CPUs otherwise."""
    return topology(
        {
            (a, b): together if any({a, b} <= group for group in groups) else apart
            for a, b in combinations(range(count), 2)
        }
    )


def within(joined: Topology, gpus: list[str]) -> int:
    return sum(joined.score(a, b) for a, b in combinations(gpus, 2))


def by_trying_all(joined: Topology, held: list[str], free: list[str], size: int) -> list[int]:
    def worth(choice: list[int]) -> tuple[int, int]:
        taken = [free[n] for n in choice]
        left = [name for name in free if name not in taken]
        return within(joined, [*held, *taken]), within(joined, left)

    # max() keeps the first of equals, and combinations() come in lexicographic order.
    return max(map(list, combinations(range(len(free)), size)), key=worth)


@st.composite
def layouts(draw: st.DrawFn, most: int = 8) -> tuple[Topology, list[str], list[str], int]:
    count = draw(st.integers(1, most))
    # Few different scores make many ties, many scores make few.
    score = draw(
        st.sampled_from([st.sampled_from([10, 20, 110]), st.integers(0, 2000), st.just(50)])
    )
    joined = topology({pair: draw(score) for pair in combinations(range(count), 2)})
    held = draw(st.integers(0, count - 1))
    shuffled = draw(st.permutations(names(count)))
    free = sorted(shuffled[held:])
    return joined, shuffled[:held], free, draw(st.integers(0, len(free)))


@settings(max_examples=400, deadline=None)
@given(layouts())
def test_the_answer_is_that_of_trying_all_choices(
    layout: tuple[Topology, list[str], list[str], int],
) -> None:
    assert closest(*layout) == by_trying_all(*layout)


@settings(max_examples=25, deadline=None)
@given(layouts(most=12))
def test_larger_nodes_are_searched_exactly_too(
    layout: tuple[Topology, list[str], list[str], int],
) -> None:
    assert closest(*layout) == by_trying_all(*layout)


@settings(max_examples=100, deadline=None)
@given(layouts(), st.integers(0, 5))
def test_a_search_cut_short_still_gives_a_good_answer(
    layout: tuple[Topology, list[str], list[str], int], steps: int
) -> None:
    joined, held, free, size = layout
    chosen = closest(joined, held, free, size, most_steps=steps)
    assert len(set(chosen)) == size
    assert chosen == sorted(chosen)
    taken = [free[n] for n in chosen]
    worth = within(joined, [*held, *taken])
    for old in taken:
        for new in set(free) - set(taken):
            exchanged = [*held, new, *(name for name in taken if name != old)]
            assert within(joined, exchanged) <= worth


def test_a_pair_is_taken_where_the_link_is() -> None:
    assert closest(linked(4, {0, 3}), [], names(4), 2) == [0, 3]


def test_what_the_container_holds_already_decides() -> None:
    quads = linked(8, {0, 1, 2, 3}, {4, 5, 6, 7})
    free = [name for name in names(8) if name != "GPU-05"]
    assert [free[n] for n in closest(quads, ["GPU-05"], free, 2)] == ["GPU-04", "GPU-06"]


def test_a_single_gpu_is_taken_where_it_breaks_up_nothing() -> None:
    assert closest(linked(5, {0, 1}, {2, 3}), [], names(5), 1) == [4]


def test_a_group_that_is_broken_already_is_used_up_first() -> None:
    quads = linked(8, {0, 1, 2, 3}, {4, 5, 6, 7})
    free = [name for name in names(8) if name != "GPU-06"]
    assert [free[n] for n in closest(quads, [], free, 1)] == ["GPU-04"]
    assert [free[n] for n in closest(quads, [], free, 3)] == ["GPU-04", "GPU-05", "GPU-07"]


def test_equal_gpus_are_taken_in_their_order() -> None:
    assert closest(linked(16, set(range(16))), [], names(16), 8) == list(range(8))
    assert closest(Topology(), [], names(6), 4) == [0, 1, 2, 3]


def test_a_group_that_does_not_divide_the_node_is_complete() -> None:
    # Five GPUs, three wanted, one pair linked.
    chosen = closest(linked(5, {1, 4}), [], names(5), 3)
    assert chosen == [0, 1, 4]


def test_the_cube_mesh_of_eight_gives_its_best_quad() -> None:
    double = [(0, 3), (0, 4), (1, 2), (1, 5), (2, 3), (4, 7), (5, 6), (6, 7)]
    single = [(0, 1), (0, 2), (1, 3), (2, 6), (3, 7), (4, 5), (4, 6), (5, 7)]
    scores = dict.fromkeys(combinations(range(8), 2), 10)
    scores |= dict.fromkeys(double, 210) | dict.fromkeys(single, 110)
    joined = topology(scores)
    chosen = closest(joined, [], names(8), 4)
    assert chosen == by_trying_all(joined, [], names(8), 4)
    assert chosen == [0, 1, 2, 3]


@pytest.mark.parametrize(("size", "chosen"), [(-1, []), (0, []), (3, [0, 1, 2]), (9, [0, 1, 2])])
def test_odd_sizes_get_what_there_is(size: int, chosen: list[int]) -> None:
    assert closest(Topology(), [], names(3), size) == chosen
