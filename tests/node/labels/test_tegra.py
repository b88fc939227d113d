"""On a machine without NVML, labels are read from the CUDA driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .conftest import Once

# Returns what the driver of an Orin returns.
LIBCUDA = r"""
#include <stddef.h>
#include <string.h>
int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 12060; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, "Orin", size); return 0; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = 30698ul << 20; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? 8 : 7;
    return 0;
}
"""


@pytest.fixture
def libraries(tmp_path: Path) -> Path:
    source, directory = tmp_path / "libcuda.c", tmp_path / "lib"
    directory.mkdir()
    source.write_text(LIBCUDA)
    library = directory / "libcuda.so.1"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    return directory


def test_the_gpu_is_described_by_the_cuda_driver(once: Once, libraries: Path) -> None:
    done = once(
        "gpu-feature-discovery", "--oneshot", "--use-node-feature-api=false", "--output-file=",
        "--device-discovery-strategy=tegra", "--no-timestamp",
        LD_LIBRARY_PATH=str(libraries),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = set(done.stdout.splitlines())
    assert {
        "nvidia.com/gpu.product=Orin",
        "nvidia.com/gpu.count=1",
        "nvidia.com/gpu.replicas=1",
        "nvidia.com/gpu.memory=30698",
        "nvidia.com/gpu.family=ampere",
        "nvidia.com/gpu.compute.minor=7",
        "nvidia.com/gpu.mode=unknown",
        "nvidia.com/cuda.driver-version.full=unknown.unknown.unknown",
        "nvidia.com/cuda.driver.major=unknown",
        "nvidia.com/cuda.runtime-version.full=12.6",
        "nvidia.com/mig.capable=false",
    } <= lines


def test_a_missing_cuda_driver_is_reported(once: Once) -> None:
    done = once(
        "gpu-feature-discovery", "--oneshot", "--use-node-feature-api=false", "--output-file=",
        "--device-discovery-strategy=tegra", LD_LIBRARY_PATH="",
    )  # fmt: skip
    assert done.returncode == 1
    assert "the CUDA driver does not answer (libcuda.so.1 cannot be loaded" in done.stderr


@pytest.mark.parametrize(("allocated", "count"), [("0", "1"), ("1", None)])
def test_a_guest_is_labelled_with_its_own_gpus(
    once: Once, libraries: Path, allocated: str, count: str | None
) -> None:
    done = once(
        "gpu-feature-discovery", "--oneshot", "--use-node-feature-api=false", "--output-file=",
        "--device-discovery-strategy=tegra", "--nested=guest",
        LD_LIBRARY_PATH=str(libraries), NVIDIA_ALLOCATED_DEVICES=allocated,
    )  # fmt: skip
    if count is None:
        assert done.returncode == 1
        assert "NVIDIA_ALLOCATED_DEVICES: '1' is not valid" in done.stderr
    else:
        assert done.returncode == 0, done.stderr
        assert f"nvidia.com/gpu.count={count}" in done.stdout.splitlines()
