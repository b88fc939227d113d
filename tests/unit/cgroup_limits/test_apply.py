"""Limits are set in the driver and read back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pynvml
import pytest

from gpuslice.cgroup_limits.apply import (
    Applied,
    NotLimited,
    Target,
    apply_limits,
    check_support,
)
from gpuslice.gpus.nvml import NO_LIMIT, MemoryLimits, Nvml, NvmlError

GIB = 1 << 30
GPU = "GPU-0"
FREE = MemoryLimits(0, NO_LIMIT)


@dataclass
class FakeGpu:
    """What the driver makes of a limit is up to `rounded`."""

    rounded: Callable[[MemoryLimits], MemoryLimits] = lambda limits: limits
    limits: dict[str, MemoryLimits] = field(default_factory=dict)
    written: list[str] = field(default_factory=list)
    error: int | None = None
    index: int = 0

    def gpu(self, index: int) -> FakeGpu:
        return self

    def uuid(self) -> str:
        return GPU

    def memory_limits(self, cgroup: str) -> MemoryLimits:
        return self.limits.get(cgroup, FREE)

    def limit_memory(self, cgroup: str, limits: MemoryLimits) -> None:
        if self.error is not None:
            raise NvmlError("it fails", self.error)
        self.written.append(cgroup)
        self.limits[cgroup] = self.rounded(limits)


def apply(fake: FakeGpu, cgroup: Path, hard: int = 2 * GIB, indices: str = GPU) -> Applied:
    target = Target(cgroup, {GPU: hard})
    return apply_limits(cast("Nvml", fake), {indices: 0}, [target])


def test_a_limit_is_written_once(tmp_path: Path) -> None:
    fake = FakeGpu()
    assert apply(fake, tmp_path).changed == (Target(tmp_path, {GPU: 2 * GIB}),)
    assert fake.limits == {str(tmp_path): MemoryLimits(0, 2 * GIB)}
    assert apply(fake, tmp_path) == Applied()
    assert len(fake.written) == 1


def test_a_driver_may_round_down_to_pages(tmp_path: Path) -> None:
    fake = FakeGpu(lambda limits: MemoryLimits(limits.soft, limits.hard - (1 << 20)))
    assert not apply(fake, tmp_path).failed
    assert apply(fake, tmp_path) == Applied()


@pytest.mark.parametrize(
    "rounded",
    [
        lambda limits: FREE,
        lambda limits: MemoryLimits(0, limits.hard + 1),
        lambda limits: MemoryLimits(0, limits.hard // 2),
        lambda limits: MemoryLimits(GIB, limits.hard),  # a reservation
    ],
)
def test_another_limit_than_the_wanted_one_is_a_failure(
    tmp_path: Path, rounded: Callable[[MemoryLimits], MemoryLimits]
) -> None:
    assert (
        "the driver accepted a limit of 2 GiB" in apply(FakeGpu(rounded), tmp_path).failed[tmp_path]
    )


def test_a_cgroup_that_is_gone_needs_no_limit(tmp_path: Path) -> None:
    fake = FakeGpu(error=pynvml.NVML_ERROR_NOT_FOUND)
    assert apply(fake, tmp_path / "gone") == Applied()
    assert apply(fake, tmp_path).failed


def test_a_gpu_that_is_gone_is_named(tmp_path: Path) -> None:
    assert apply(FakeGpu(), tmp_path, indices="GPU-1").failed == {tmp_path: f"GPU {GPU} is gone"}


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (pynvml.NVML_ERROR_NOT_SUPPORTED, "drivers from 615 on have them"),
        (pynvml.NVML_ERROR_FUNCTION_NOT_FOUND, "drivers from 615 on have them"),
        (pynvml.NVML_ERROR_NO_PERMISSION, "limits need root on the node"),
    ],
)
def test_why_limits_cannot_be_set(tmp_path: Path, error: int, reason: str) -> None:
    fake = cast("Nvml", FakeGpu(error=error))
    with pytest.raises(NotLimited, match=reason):
        check_support(fake, {GPU: 0}, tmp_path, write=True)
    check_support(fake, {GPU: 0}, tmp_path, write=False)


def test_the_check_changes_nothing(tmp_path: Path) -> None:
    fake = FakeGpu(limits={str(tmp_path): MemoryLimits(1, 5)})
    check_support(cast("Nvml", fake), {GPU: 0}, tmp_path, write=True)
    assert fake.limits == {str(tmp_path): MemoryLimits(1, 5)}
    with pytest.raises(NotLimited, match="the driver is not open"):
        check_support(None, {GPU: 0}, tmp_path, write=True)
