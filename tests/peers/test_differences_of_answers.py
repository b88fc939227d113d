"""Accepted differences from NVIDIA's device plugin 0.19.0: answers to Allocate. Both sides are
shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.codes import Code

from .agreement import differences as d
from .agreement.configs import GPU, replicas, write
from .agreement.differences import shows
from .agreement.pair import Refusal, Side
from .agreement.requests import answer
from .conftest import MakeNode, StartPair


@shows(d.ANNOTATION_KEY)
def test_our_plugin_answers_equal_requests_with_equal_annotations(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    pair = start_pair(node, "--device-list-strategy=cdi-annotations", f"--driver-root={node.root}")
    pair.wait_for(GPU)
    asked = [node.gpu(0).uuid]

    def keys(side: Side) -> set[str]:
        return {key for _ in range(3) for key in answer(side, asked).annotations}

    assert len(keys(pair.theirs)) == 3
    assert len(keys(pair.ours)) == 1


@shows(d.ORDER)
def test_our_plugin_keeps_the_order_of_the_request_for_indices(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("a100-40x8"), "--device-id-strategy=index")
    pair.wait_for(GPU)
    order = (5, 1, 7, 0, 3)
    asked = [pair.node.gpu(index).uuid for index in order]

    def seen(side: Side) -> set[str]:
        return {answer(side, asked).envs["NVIDIA_VISIBLE_DEVICES"] for _ in range(20)}

    assert len(seen(pair.theirs)) > 1
    assert seen(pair.ours) == {"5,1,7,0,3"}


@shows(d.NODE_ONCE)
def test_our_plugin_passes_a_device_node_that_replicas_share_once(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(4)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}", "--pass-device-specs")
    pair.wait_for(GPU)
    uuid = pair.node.gpu(0).uuid

    def count(side: Side) -> int:
        devices = answer(side, [f"{uuid}::0", f"{uuid}::1"]).devices
        return sum(device.container_path == "/dev/nvidia0" for device in devices)

    assert (count(pair.theirs), count(pair.ours)) == (2, 1)


@shows(d.REMEDY)
def test_our_rejections_contain_a_remedy(make_node: MakeNode, start_pair: StartPair) -> None:
    pair = start_pair(make_node("t4x2"))
    pair.wait_for(GPU)
    theirs, ours = (side.allocate(GPU, [["GPU-0"]]) for side in (pair.theirs, pair.ours))
    assert theirs == Refusal(
        'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: GPU-0'
    )
    assert isinstance(ours, Refusal)
    assert ours.text.startswith(f"{Code.UNKNOWN_DEVICE}: {theirs.text}")
    assert "Delete the pod" in ours.text


@shows(d.NO_SENSE)
@pytest.mark.parametrize(("count", "code"), [(0, Code.EMPTY_REQUEST), (2, Code.DUPLICATE_DEVICE)])
def test_our_plugin_rejects_empty_and_duplicate_requests(
    make_node: MakeNode, start_pair: StartPair, count: int, code: Code
) -> None:
    pair = start_pair(make_node("t4x2"))
    pair.wait_for(GPU)
    asked = [pair.node.gpu(0).uuid] * count
    assert not isinstance(pair.theirs.allocate(GPU, [asked]), Refusal)
    ours = pair.ours.allocate(GPU, [asked])
    assert isinstance(ours, Refusal)
    assert ours.text.startswith(f"{code}: ")
