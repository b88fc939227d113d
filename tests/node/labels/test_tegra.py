"""A machine without NVML tells what the CUDA driver knows of its GPU."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from .conftest import Once

# What Orin's driver answers.
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


def test_the_cuda_driver_speaks_for_the_gpu(once: Once, libraries: Path) -> None:
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


def test_without_a_cuda_driver_it_says_so(once: Once) -> None:
    done = once(
        "gpu-feature-discovery", "--oneshot", "--use-node-feature-api=false", "--output-file=",
        "--device-discovery-strategy=tegra", LD_LIBRARY_PATH="",
    )  # fmt: skip
    assert done.returncode == 1
    assert "the CUDA driver does not answer (libcuda.so.1 cannot be loaded" in done.stderr
