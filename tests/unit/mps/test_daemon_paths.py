"""Files of MPS, with the names that NVIDIA's programs and containers use."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.mps.daemon_paths import DaemonPaths, daemon_of
from gpuslice.mps.mounts import mount_of, parse_mountinfo
from gpuslice.mps.shm import is_mounted, size_kib, unused_shm

MOUNTINFO = """\
22 1 8:1 / / rw,relatime - ext4 /dev/root rw
29 22 0:42 / /mps rw shared:7 master:1 - tmpfs tmpfs rw
30 29 0:43 / /mps/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm rw
"""


def test_places_are_nvidias() -> None:
    place = DaemonPaths("nvidia.com/gpu.shared")
    assert str(place.pipe) == "/mps/nvidia.com/gpu.shared/pipe"
    assert str(place.log) == "/mps/nvidia.com/gpu.shared/log"
    assert str(place.shm) == "/mps/nvidia.com/gpu.shared/shm"
    assert str(place.started) == "/mps/nvidia.com/gpu.shared/.started"


@pytest.mark.parametrize(
    ("pipe", "name"),
    [
        ("/mps/nvidia.com/gpu/pipe", "nvidia.com/gpu"),
        ("/mps/GPU-1/pipe", "GPU-1"),
        ("/run/nvidia-mps", None),
        ("/mps/nvidia.com/gpu/log", None),
    ],
)
def test_a_pipe_directory_identifies_its_daemon(pipe: str, name: str | None) -> None:
    assert daemon_of(pipe) == name


def test_a_mount_is_distinguished_from_a_directory() -> None:
    points = parse_mountinfo(MOUNTINFO)
    assert is_mounted(Path("/mps/shm"), points)
    assert not is_mounted(Path("/mps/nvidia.com"), points)


def test_a_mount_below_a_shared_one_appears_on_the_host() -> None:
    points = parse_mountinfo(MOUNTINFO)
    for path, shared in (("/mps/nvidia.com/gpu/shm", True), ("/mps/shm/x", False), ("/x", False)):
        found = mount_of(Path(path), points)
        assert found is not None
        assert found.is_shared is shared


def test_shared_memory_is_half_of_the_memory() -> None:
    assert size_kib("MemTotal:       24682416 kB\nMemFree: 1 kB\n") == 12341208
    assert size_kib("nothing") == 65536


def test_shared_memory_of_resources_and_gpus_that_nothing_wants_is_found(tmp_path: Path) -> None:
    for name in ("nvidia.com/gpu", "nvidia.com/shm", "GPU-1", "GPU-2"):
        DaemonPaths(name, tmp_path).shm.mkdir(parents=True)
    (tmp_path / "shm").mkdir()
    assert unused_shm(tmp_path, {"GPU-2", "nvidia.com/shm"}) == ["GPU-1", "nvidia.com/gpu"]
