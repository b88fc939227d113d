"""A GPU divided into named shares with limits of their own."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice.mps.daemon_plan import plan_daemons
from gpuslice.slicing.catalogue import Catalogue, catalogue
from gpuslice.slicing.errors import NothingToAdvertise, SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.grant import grant
from gpuslice.slicing.limits import Limits
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import (
    MemoryRule,
    NamedShare,
    NameRule,
    Overcommit,
    ReplicaRule,
    Rules,
    Selection,
    SharingStrategy,
)
from gpuslice.slicing.threads import Multiprocessors, Percent, ThreadRule, ThreadStrategy, sms_at

from .nodes import codes, contents, gpu, messages

GPU = "nvidia.com/gpu"
LARGE = NamedShare("large", 4096, Percent(70))
SMALL = NamedShare("small", 8192, Percent(30))


def a100(index: int) -> Gpu:
    return replace(gpu(index), multiprocessors=108)


def rule(*shares: NamedShare, **changes: object) -> ReplicaRule:
    count = sum(share.count for share in shares)
    base = ReplicaRule(
        SharingStrategy.MPS, GPU, count, fail_requests_greater_than_one=True, shares=shares
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def shared(*rules: ReplicaRule, gpus: tuple[Gpu, ...] = (a100(0),)) -> Catalogue:
    return catalogue(gpus, Rules(replicas=rules))


def pool(found: Catalogue, name: str) -> Pool:
    return next(pool for pool in found.pools if pool.resource == f"{GPU}.{name}")


def limits(found: Catalogue, name: str, count: int = 1) -> Limits:
    """Of a container that has so many of these shares of the first GPU."""
    named = pool(found, name)
    [granted] = grant(named, list(named.parts[0].ids)[:count]).parts
    return granted.limits


def test_each_share_has_a_resource_and_limits_of_its_own() -> None:
    found = shared(rule(LARGE, SMALL))
    assert contents(found) == {f"{GPU}.large": ["0 x 1"], f"{GPU}.small": ["0 x 1"]}
    # The larger part of the threads has the smaller part of the memory.
    assert limits(found, "large") == Limits(4096, 70)
    assert limits(found, "small") == Limits(8192, 30)
    assert found.notices == ()


def test_ids_name_the_gpu_and_the_share() -> None:
    found = shared(rule(LARGE, replace(SMALL, threads=Percent(10), count=3)))
    assert list(pool(found, "large").owners) == ["GPU-0::large-0"]
    assert list(pool(found, "small").owners) == [f"GPU-0::small-{n}" for n in range(3)]


def test_the_shares_of_a_renamed_resource_have_its_name() -> None:
    found = shared(rule(LARGE, rename="nvidia.com/cut"))
    assert contents(found) == {"nvidia.com/cut.large": ["0 x 1"]}


def test_all_shares_of_a_gpu_have_one_daemon_without_limits() -> None:
    found = shared(rule(LARGE, SMALL), gpus=(a100(0), a100(1)))
    [daemon] = plan_daemons(found.pools, (), "570.124.06").daemons
    assert (daemon.name, daemon.gpus) == (GPU, ("GPU-0", "GPU-1"))
    assert not daemon.limited
    assert daemon.max_limits == (Limits(40960, 100),) * 2


def test_each_gpu_can_have_shares_of_its_own() -> None:
    found = shared(
        rule(LARGE, SMALL, devices=Selection(references=("0",))),
        rule(
            replace(LARGE, memory_mib=40960, threads=Percent(100)),
            devices=Selection(references=("1",)),
        ),
        gpus=(a100(0), a100(1), a100(2)),
    )
    assert contents(found) == {
        GPU: ["2"],
        f"{GPU}.large": ["0 x 1", "1 x 1"],
        f"{GPU}.small": ["0 x 1"],
    }
    first, second = pool(found, "large").parts
    assert (first.share.times(1), second.share.times(1)) == (Limits(4096, 70), Limits(40960, 100))
    [daemon] = plan_daemons(found.pools, (), "570.124.06").daemons
    assert daemon.gpus == ("GPU-0", "GPU-1")


@pytest.mark.parametrize(
    ("threads", "percent"),
    [
        (ThreadStrategy.PROPORTIONAL, 10),
        (ThreadStrategy.UNIFORM, 50),
        (ThreadStrategy.UNIFORM_HALF, 100),
        (ThreadStrategy.NONE, None),
        (Percent(3), 3),
        (Multiprocessors(20), 19),  # 20.52 of 108 SMs
    ],
)
def test_threads_of_a_share(threads: ThreadRule, percent: int | None) -> None:
    one, other = NamedShare("a", 4096, threads), NamedShare("b", 1024, Percent(1))
    assert limits(shared(rule(one, other)), "a") == Limits(4096, percent)


def test_several_equal_shares_of_a_container_add_up() -> None:
    share = NamedShare("s", 4096, Multiprocessors(20), count=3)
    found = shared(rule(share, fail_requests_greater_than_one=False))
    # 20, 40 and 60 SMs: 19%, 38% and 56% are the lowest percentages that give them.
    assert [limits(found, "s", n) for n in (1, 2, 3)] == [
        Limits(4096, 19), Limits(8192, 38), Limits(12288, 56),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("shares", "words"),
    [
        ([replace(LARGE, memory_mib=32769), SMALL], "40961 MiB of its 40960 MiB"),
        ([LARGE, replace(SMALL, threads=Percent(31))], "101% of its threads"),
        ([replace(LARGE, count=2, threads=Multiprocessors(56))], "103.7% of its threads"),
    ],
)
def test_shares_that_exceed_the_gpu_follow_the_policy(shares: list[NamedShare], words: str) -> None:
    with pytest.raises(SlicingError) as refused:
        shared(rule(*shares))
    assert refused.value.code is Code.OVERCOMMITTED
    assert words in str(refused.value)
    assert "overcommit" in str(refused.value)
    warned = shared(rule(*shares, overcommit=Overcommit.WARN))
    assert codes(warned) == [Code.OVERCOMMITTED]
    assert words in messages(warned)[0]
    assert shared(rule(*shares, overcommit=Overcommit.ALLOW)).notices == ()


def test_the_reserve_belongs_to_no_share() -> None:
    full = rule(NamedShare("a", 40960, Percent(100)))
    assert shared(full).notices == ()
    with pytest.raises(SlicingError, match="512 MiB are reserved"):
        shared(replace(full, reserve_mib=512))


def test_replicas_with_explicit_threads_follow_the_policy() -> None:
    many = ReplicaRule(SharingStrategy.MPS, GPU, 4, threads=Percent(30))
    with pytest.raises(SlicingError) as refused:
        shared(many)
    assert refused.value.code is Code.OVERCOMMITTED
    assert shared(replace(many, threads=ThreadStrategy.UNIFORM_HALF)).notices == ()


@pytest.mark.parametrize("overcommit", Overcommit)
@pytest.mark.parametrize(
    "share",
    [
        NamedShare("a", 40961, Percent(1)),
        NamedShare("a", 1024, Multiprocessors(110)),
    ],
)
def test_a_gpu_that_is_smaller_than_one_share_is_skipped(
    share: NamedShare, overcommit: Overcommit
) -> None:
    larger = replace(a100(1), memory_mib=81920, multiprocessors=132)
    found = shared(rule(share, overcommit=overcommit), gpus=(a100(0), larger))
    assert contents(found) == {f"{GPU}.a": ["1 x 1"]}
    assert codes(found) == [Code.GPU_SKIPPED]
    with pytest.raises(NothingToAdvertise):
        shared(rule(share, overcommit=overcommit))


def test_a_gpu_whose_number_of_sms_is_unknown_is_skipped_only_if_it_matters() -> None:
    unknown = (gpu(0),)
    assert shared(rule(LARGE, SMALL), gpus=unknown).notices == ()
    with pytest.raises(NothingToAdvertise, match="number of SMs is unknown"):
        shared(rule(replace(LARGE, threads=Multiprocessors(2))), gpus=unknown)


def test_a_number_of_sms_that_mps_rounds_is_a_notice() -> None:
    odd = NamedShare("a", 1024, Multiprocessors(21))
    found = shared(rule(odd, NamedShare("b", 1024, Multiprocessors(20))))
    assert codes(found) == [Code.THREADS_ROUNDED]
    assert "share a: " in messages(found)[0]
    replicas = ReplicaRule(SharingStrategy.MPS, GPU, 2, threads=Multiprocessors(21))
    assert codes(shared(replicas)) == [Code.THREADS_ROUNDED]
    limited = MemoryRule(threads=Multiprocessors(21), limited=True)
    assert codes(catalogue([a100(0)], Rules(memory=limited))) == [Code.THREADS_ROUNDED]


def test_mps_serves_at_most_48_shares_of_a_gpu() -> None:
    share = NamedShare("a", 64, Percent(1))
    assert shared(rule(replace(share, count=24), replace(share, name="b", count=24)))
    with pytest.raises(SlicingError, match="shares: 49") as refused:
        shared(rule(replace(share, count=25), replace(share, name="b", count=24)))
    assert refused.value.code is Code.INVALID_REPLICAS


def test_a_share_has_its_name_for_itself() -> None:
    rules = Rules(
        gpus=(NameRule("*T4", f"{GPU}.large"), NameRule("*", GPU)), replicas=(rule(LARGE, SMALL),)
    )
    with pytest.raises(SlicingError, match="name of a share") as refused:
        catalogue([a100(0), gpu(1, "Tesla T4")], rules)
    assert refused.value.code is Code.CONFLICTING_RULES


THREADS = st.one_of(
    st.sampled_from(ThreadStrategy),
    st.integers(1, 100).map(Percent),
    st.integers(1, 108).map(Multiprocessors),
)


@st.composite
def named_shares(draw: st.DrawFn) -> list[NamedShare]:
    names = draw(st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True))
    return [
        NamedShare(name, draw(st.integers(1, 30000)), draw(THREADS), draw(st.integers(1, 8)))
        for name in names
    ]


def percent(share: NamedShare) -> Fraction:
    """What a share has of a GPU with 108 SMs, exactly."""
    match share.threads:
        case Percent(value):
            return Fraction(value)
        case Multiprocessors(count):
            return Fraction(100 * count, 108)
    return Fraction(100 * share.memory_mib, 40960)


EXPLICIT = named_shares().map(
    lambda shares: [one for one in shares if not isinstance(one.threads, ThreadStrategy)]
)


@given(EXPLICIT.filter(bool), st.integers(0, 4096))
def test_shares_are_refused_exactly_if_their_sums_exceed_the_gpu(
    shares: list[NamedShare], reserve_mib: int
) -> None:
    assume(sum(share.count for share in shares) <= 48)
    memory_mib = sum(share.count * share.memory_mib for share in shares)
    exceeds = (
        memory_mib > 40960 - reserve_mib
        or sum(share.count * percent(share) for share in shares) > 100
    )
    checked = rule(*shares, reserve_mib=reserve_mib)
    if exceeds:
        with pytest.raises(SlicingError) as refused:
            shared(checked)
        assert refused.value.code is Code.OVERCOMMITTED
        return
    found = shared(checked)
    for share in shares:
        limit = limits(found, share.name)
        assert limit.memory_mib == share.memory_mib
        assert limit.threads_percent is not None
        if isinstance(share.threads, Percent):
            assert limit.threads_percent == share.threads.value
        else:
            # As the driver rounds: whole TPCs, at least one.
            wanted = max(2, int(percent(share) * 108 / 100) // 2 * 2)
            assert sms_at(limit.threads_percent, 108) == wanted


@given(named_shares())
def test_the_limits_of_a_share_do_not_depend_on_its_neighbours(shares: list[NamedShare]) -> None:
    explicit = [one for one in shares if not isinstance(one.threads, ThreadStrategy)]
    assume(explicit and sum(share.count for share in shares) <= 48)
    allowed = {"overcommit": Overcommit.ALLOW}
    together = shared(rule(*shares, **allowed))
    for share in explicit:
        assert limits(together, share.name) == limits(shared(rule(share, **allowed)), share.name)
