"""What a node is found to have."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.cdi.node_specs import CdiNames
from gpuslice.codes import Code
from gpuslice.config.settings import CdiSettings, ContainerSettings, Settings
from gpuslice.inject.visible import Host
from gpuslice.node.errors import ProgramError
from gpuslice.programs.agent.host import read_host
from tests.unit.logged import logged


def settings_for(tmp_path: Path, containers: ContainerSettings) -> Settings:
    """The driver root has an empty /dev, so nothing of the machine itself is found."""
    (tmp_path / "dev").mkdir()
    return Settings(containers=containers, cdi=CdiSettings(container_driver_root=str(tmp_path)))


def test_a_node_without_nodes_has_none(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ContainerSettings())
    assert read_host(settings, root=tmp_path) == Host()


def test_names_of_cdi_are_passed_on(tmp_path: Path) -> None:
    settings = settings_for(tmp_path, ContainerSettings())
    names = CdiNames({"GPU-a": "nvidia.com/gpu=GPU-a"}, ("x/gds=all",))
    assert read_host(settings, names, root=tmp_path) == Host(
        cdi_names={"GPU-a": "nvidia.com/gpu=GPU-a"}, cdi_extras=("x/gds=all",)
    )


def test_a_missing_imex_channel_is_left_out_or_if_required_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    containers = ContainerSettings(imex_channels=(0,))
    settings = settings_for(tmp_path, containers)
    with caplog.at_level(logging.WARNING):
        assert read_host(settings, root=tmp_path).imex_channels == ()
    assert logged(caplog) == [Code.IMEX_CHANNEL_MISSING]
    required = replace(settings, containers=replace(containers, imex_required=True))
    with pytest.raises(ProgramError, match=r"channel 0 does not exist.*imex\.required") as error:
        read_host(required, root=tmp_path)
    assert error.value.code is Code.IMEX_CHANNEL_MISSING
