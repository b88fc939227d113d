"""GPUs and pools as hypothesis makes them."""

import uuid

from hypothesis import assume
from hypothesis import strategies as st

from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.memory_units import memory_pool
from gpuslice.slicing.pool import Pool
from gpuslice.slicing.rules import MemoryRule
from gpuslice.slicing.units import MemoryUnit


@st.composite
def nodes(draw: st.DrawFn, max_gpus: int = 6) -> list[Gpu]:
    """Cards of any size, minor numbers with gaps and in any order."""
    minors = draw(st.lists(st.integers(0, 31), min_size=1, max_size=max_gpus, unique=True))
    numbers = draw(
        st.lists(
            st.integers(0, (1 << 128) - 1), min_size=len(minors), max_size=len(minors), unique=True
        )
    )
    return [
        Gpu(
            uuid=f"GPU-{uuid.UUID(int=number)}",
            index=index,
            minor=minor,
            name="Simulated",
            memory_mib=draw(st.integers(0, 200_000)),
        )
        for index, (minor, number) in enumerate(zip(minors, numbers, strict=True))
    ]


@st.composite
def memory_pools(draw: st.DrawFn) -> Pool:
    """Of nodes with at least one unit."""
    unit = MemoryUnit(draw(st.sampled_from([512, 1000, 1024, 4096, 16384])))
    pool, _ = memory_pool(draw(nodes()), MemoryRule(unit=unit))
    assume(pool is not None)
    assert pool is not None
    return pool
