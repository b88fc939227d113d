"""Labels of platforms with placeholders for GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.settings import Settings
from gpuslice.gpus.inventory import Platform
from gpuslice.labels.collect import collect_labels
from gpuslice.labels.errors import NodeUnreadable


def test_without_a_driver_wsl_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(NodeUnreadable, match="the NVIDIA driver is not loaded"):
        collect_labels(None, Platform.WSL, (), (), Settings(), sysfs=tmp_path)


def test_wsl_without_a_driver_can_be_labelled_as_a_node_without_gpus(tmp_path: Path) -> None:
    settings = Settings(fail_on_init_error=False)
    (tmp_path / "bus" / "pci" / "devices").mkdir(parents=True)
    found = collect_labels(None, Platform.WSL, (), (), settings, timestamp=7, sysfs=tmp_path)
    assert found == {"nvidia.com/gfd.timestamp": "7", "nvidia.com/vgpu.present": "false"}
