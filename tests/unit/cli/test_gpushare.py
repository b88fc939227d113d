"""The command line of gpushare's device plugin."""

from __future__ import annotations

import pytest

from gpuslice.cli.daemon_program import read_flags
from gpuslice.cli.gpushare import DEFAULTS, PROGRAM, agent_values
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.settings import HealthSettings, MpsCheck, Settings
from gpuslice.slicing.rules import Advertise, MemoryRule
from gpuslice.slicing.units import MemoryUnit


def settings(args: str, **environment: str) -> Settings:
    flags = read_flags(PROGRAM, args.split())
    return load_settings(agent_values(flags, environment), DEFAULTS).settings


def test_the_command_line_of_a_gpushare_daemonset_is_accepted() -> None:
    found = settings(
        "-logtostderr --v=5 --memory-unit=GiB --mps-pipe=/root/nvidia-mps --mps --health-check"
    )
    assert found.rules.memory == MemoryRule(
        unit=MemoryUnit(1024), limited=True, advertise=Advertise.ALL
    )
    assert found.memory_mps.pipe == "/root/nvidia-mps"
    assert found.health == HealthSettings(enabled=True)


def test_without_flags_all_memory_is_advertised_as_gpushare_does() -> None:
    found = settings("")
    assert found.rules.memory == MemoryRule(advertise=Advertise.ALL)
    assert found.memory_mps.check is MpsCheck.AUTO
    assert not found.health.enabled
    assert not found.fail_on_init_error


@pytest.mark.parametrize(
    ("args", "pipe"),
    [
        ("", None),
        ("--mps", "/tmp/nvidia-mps"),
        ("--mps-pipe=/a", "/a"),
        ("--mps=false --mps-pipe=/a", None),
    ],
)
def test_mps_is_on_with_its_flag_or_with_its_directory(args: str, pipe: str | None) -> None:
    assert settings(args).memory_mps.pipe == pipe


def test_an_unknown_unit_becomes_gib_as_with_gpushare() -> None:
    for text, unit in (("GB", MemoryUnit(1024)), ("256MiB", MemoryUnit(256))):
        expected = MemoryRule(unit=unit, advertise=Advertise.ALL)
        assert settings(f"--memory-unit={text}").rules.memory == expected


def test_managed_daemons_are_chosen_by_variable() -> None:
    found = settings("", GPUSLICE_MPS_MODE="managed", MPS_ROOT="/m", GPUSLICE_MPS_SHM="")
    assert found.has_managed_slices
    assert found.containers.mps_root == "/m"
    shared = settings("--mps-pipe=/root/nvidia-mps", GPUSLICE_MPS_SHM="host")
    assert shared.memory_mps.shm == "/dev/shm"


def test_few_options_have_a_variable() -> None:
    found = settings("", KUBELET_SOCKET="/k.sock", MIG_STRATEGY="mixed", GPUSLICE_RESOURCE="a.b/c")
    assert found.kubelet_socket == "/k.sock"
    assert found.rules == DEFAULTS.rules
    assert found.memory_mps == DEFAULTS.memory_mps


def test_mps_without_a_directory_is_rejected() -> None:
    with pytest.raises(ConfigError, match=r"mps-pipe: '' .*set the pipe directory"):
        settings("--mps --mps-pipe=")
