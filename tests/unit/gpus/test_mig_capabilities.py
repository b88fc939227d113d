from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.gpus.mig_capabilities import NoCapability, read_capabilities

MINORS = """config 1
monitor 2
gpu0/gi0/access 3
gpu0/gi0/ci0/access 4
gpu4/gi13/access 700
gpu4/gi13/ci2/access 703

gpu9/gi0/access
"""


def minors(proc: Path, text: str) -> Path:
    (proc / "driver" / "nvidia-caps").mkdir(parents=True)
    (proc / "driver" / "nvidia-caps" / "mig-minors").write_text(text)
    return proc


def test_a_mig_device_needs_the_nodes_of_its_two_instances(tmp_path: Path) -> None:
    capabilities = read_capabilities(minors(tmp_path, MINORS))
    assert capabilities.nodes(4, 13, 2) == (
        "/dev/nvidia-caps/nvidia-cap700",
        "/dev/nvidia-caps/nvidia-cap703",
    )


@pytest.mark.parametrize(
    ("instance", "missing"),
    [((0, 0, 1), "gpu0/gi0/ci1/access"), ((1, 0, 0), "gpu1/gi0/access"), ((9, 0, 0), "gpu9")],
)
def test_a_missing_entry_is_named_with_its_file(
    instance: tuple[int, int, int], missing: str, tmp_path: Path
) -> None:
    capabilities = read_capabilities(minors(tmp_path, MINORS))
    with pytest.raises(NoCapability, match=rf"mig-minors has no entry {missing}"):
        capabilities.nodes(*instance)


def test_a_driver_without_mig_has_no_capabilities(tmp_path: Path) -> None:
    with pytest.raises(NoCapability, match="mig-minors has no entry"):
        read_capabilities(tmp_path).nodes(0, 0, 0)
