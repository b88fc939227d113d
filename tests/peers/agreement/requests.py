"""All requests that the kubelet may send, sent to both plugins: their answers must agree."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from itertools import combinations

from gpuslice.kubelet.api import deviceplugin_pb2 as api

from .compare import (
    Plain,
    allocations_agree,
    lists_agree,
    preferences_agree,
    registrations_agree,
)
from .configs import GPU
from .differences import Difference
from .pair import Pair, Refusal, Side


def all_agree(pair: Pair, accepted: Collection[Difference] = (), *, seed: int = 0) -> None:
    registrations_agree(pair, accepted)
    lists_agree(pair)
    for resource in sorted(pair.resources):
        ids = sorted(pair.ours.kubelet.devices(resource))
        for containers in requests(ids, seed):
            allocations_agree(pair, resource, *containers, accepted=accepted)
        for available, must_include, size in preference_requests(pair, ids, seed):
            preferences_agree(pair, resource, available, must_include, size)
    registrations_agree(pair, accepted)


def requests(ids: Sequence[str], seed: int) -> list[tuple[Sequence[str], ...]]:
    """For one container and for several in one call, with known devices and with unknown ones."""
    draw = random.Random(seed)
    some = draw.sample(ids, min(6, len(ids)))
    return [
        *(([one],) for one in ids[:16]),
        *((two,) for two in combinations(some, 2)),
        (ids[:64],),
        (some,),
        tuple([one] for one in some),
        (["GPU-0"],),
        ([ids[0], "GPU-0"],),
        ([ids[0]], [f"{ids[-1]}::99"]),
    ]


def preference_requests(
    pair: Pair, ids: Sequence[str], seed: int
) -> list[tuple[list[str], list[str], int]]:
    """Only what NVIDIA's answers in time and without a crash: for the rest see SURE_ADVICE."""
    draw = random.Random(seed)
    whole = {gpu.uuid for gpu in pair.node.gpus()}.issuperset(ids)
    result = []
    for _ in range(16):
        available = draw.sample(ids, draw.randint(1, len(ids)))
        total = len(available)
        sizes = [n for n in range(1, total + 1) if not whole or cheap(total, n)]
        size = draw.choice(sizes)
        result.append((available, draw.sample(available, draw.randint(0, size)), size))
    return result


def cheap(available: int, size: int) -> bool:
    """Whether there are few ways to divide the GPUs into groups of that size."""
    return available <= 8 or (available % size == 0 and available // size <= 2)


def agreed(
    pair: Pair, resource: str, ids: Sequence[str], accepted: Collection[Difference] = ()
) -> list[Plain]:
    answer = allocations_agree(pair, resource, ids, accepted=accepted)
    assert not isinstance(answer, Refusal), answer
    return answer


def answer(side: Side, ids: list[str], resource: str = GPU) -> api.ContainerAllocateResponse:
    """The answer of one plugin to Allocate for one container."""
    answers = side.allocate(resource, [ids])
    assert not isinstance(answers, Refusal), answers
    [one] = answers
    return one
