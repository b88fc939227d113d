"""Accepted differences from NVIDIA's device plugin 0.19.0: preferred devices. Both sides are
shown."""

from __future__ import annotations

from pathlib import Path

from gpuslice_sim.node import SimNode

from .agreement import differences as d
from .agreement.configs import GPU, replicas, write
from .agreement.differences import shows
from .agreement.links import closeness
from .agreement.pair import Refusal, Side
from .conftest import MakeNode, StartPair


@shows(d.SURE_ADVICE)
def test_our_plugin_answers_a_preference_request_if_too_few_devices_are_free(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(2)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    free = sorted(pair.ours.health(GPU))
    theirs = pair.theirs.preferred(GPU, free, [], 5)
    assert isinstance(theirs, Refusal)
    assert "not enough available devices" in theirs.text
    ours = pair.ours.preferred(GPU, free, [], 5)
    assert not isinstance(ours, Refusal)
    assert sorted(ours) == free


@shows(d.SURE_ADVICE)
def test_our_plugin_answers_a_preference_request_that_crashes_nvidias(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100-40x8")
    join(node, {(4, 5): 12})
    pair = start_pair(node)
    pair.wait_for(GPU)
    free = [node.gpu(index).uuid for index in (0, 1, 2, 4, 5)]
    assert isinstance(pair.theirs.preferred(GPU, free, [], 3), Refusal)
    assert pair.theirs.process.wait() != 0
    assert "nil pointer" in pair.theirs.process.output()
    ours = pair.ours.preferred(GPU, free, [], 3)
    assert not isinstance(ours, Refusal)
    assert set(ours) >= {node.gpu(4).uuid, node.gpu(5).uuid}


@shows(d.CLOSER_GROUP)
def test_our_plugin_prefers_the_closest_group(make_node: MakeNode, start_pair: StartPair) -> None:
    node = make_node("v100x4")
    join(node, {(0, 1): 3, (0, 2): 2, (1, 3): 2})
    pair = start_pair(node)
    pair.wait_for(GPU)
    free = [gpu.uuid for gpu in node.gpus()]

    def chosen(side: Side) -> list[str]:
        found = side.preferred(GPU, free, [], 2)
        assert not isinstance(found, Refusal)
        return found

    assert set(chosen(pair.ours)) == {free[0], free[1]}
    assert closeness(node, chosen(pair.theirs)) < closeness(node, chosen(pair.ours))


@shows(d.SPREAD_OVER_GPUS)
def test_our_plugin_prefers_mig_devices_of_different_gpus(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("a100x2-mig-single"), "--mig-strategy=single")
    pair.wait_for(GPU)
    card = {mig.uuid: gpu.index for gpu in pair.node.gpus() for mig in gpu.mig}

    def cards(side: Side) -> set[int]:
        """How many GPUs two devices come from."""
        found = (side.preferred(GPU, list(card), [], 2) for _ in range(30))
        return {len({card[i] for i in two}) for two in found if not isinstance(two, Refusal)}

    assert 1 in cards(pair.theirs)
    assert cards(pair.ours) == {2}


def join(node: SimNode, links: dict[tuple[int, int], int]) -> None:
    """These NVLinks, and no others."""
    state = node.state.values()
    counts = {gpu.index: int(state[f"gpu.{gpu.index}.nvlink.count"]) for gpu in node.gpus()}
    ends = {gpu: ["off"] * count for gpu, count in counts.items()}
    used = dict.fromkeys(counts, 0)
    for (one, other), number in links.items():
        for here, there in ((one, other), (other, one)):
            for _ in range(number):
                ends[here][used[here]] = f"gpu:{node.gpu(there).pci}"
                used[here] += 1
    node.set(
        {f"gpu.{gpu}.nvlink.{n}": end for gpu, all_ in ends.items() for n, end in enumerate(all_)}
    )
