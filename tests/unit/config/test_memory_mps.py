"""Who runs MPS for memory units: `--mps-mode`, `--mps-pipe`, `--mps-shm`."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.cli import gpushare, nvidia
from gpuslice.cli.agent import AGENT_DEFAULTS
from gpuslice.cli.labels import LABELS_DEFAULTS
from gpuslice.cli.mps_control_daemon import DEFAULTS, MPS_DEFAULTS
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Loaded, load_settings
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.settings import MemoryMps, MpsMode, MpsNamespaces, Settings

ROOT = {"mps-root": "/run/nvidia/mps"}
MANAGED = {"mps-mode": "managed", **ROOT}
PIPE = {"mps-pipe": "/run/nvidia-mps"}


def load(
    flags: dict[str, str], defaults: Settings = AGENT_DEFAULTS, file: Path | None = None
) -> Loaded:
    return load_settings(collect_option_values(flags, {}, OPTIONS), defaults, file)


def mode(flags: dict[str, str], defaults: Settings = AGENT_DEFAULTS) -> MpsMode:
    settings = load(flags, defaults).settings
    memory = settings.rules.memory
    assert memory is not None
    assert memory.limited is (settings.memory_mps.mode is not MpsMode.NONE)
    assert memory.daemon_per_gpu is (settings.memory_mps.mode is MpsMode.MANAGED)
    return settings.memory_mps.mode


def test_nobody_runs_mps_by_default() -> None:
    assert mode({}) is MpsMode.NONE


def test_a_pipe_directory_is_that_of_an_external_daemon() -> None:
    assert mode(PIPE) is MpsMode.EXTERNAL
    assert mode({**PIPE, "mps-mode": "external"}) is MpsMode.EXTERNAL


def test_gpushare_has_an_external_daemon() -> None:
    values = gpushare.agent_values({"mps": "true"}, {})
    assert load_settings(values, gpushare.DEFAULTS).settings.memory_mps.mode is MpsMode.EXTERNAL


def test_managed_daemons_need_no_pipe_directory() -> None:
    settings = load(MANAGED).settings
    assert settings.memory_mps == MemoryMps(is_managed=True)
    assert settings.has_managed_slices
    assert mode(MANAGED) is MpsMode.MANAGED


def test_managed_daemons_need_the_mps_root() -> None:
    with pytest.raises(ConfigError, match=r"mps-root: .*for example /run/nvidia/mps"):
        load({"mps-mode": "managed"})
    # A node without memory units does not.
    assert not load({"mps-mode": "managed", "memory-devices": "none"}).settings.has_managed_slices


def test_the_programs_that_run_daemons_know_their_root() -> None:
    for defaults in (DEFAULTS, MPS_DEFAULTS):
        assert load({"mps-mode": "managed"}, defaults).settings.has_managed_slices


def test_all_programs_of_a_node_slice_the_same_memory() -> None:
    assert MPS_DEFAULTS.rules == LABELS_DEFAULTS.rules == AGENT_DEFAULTS.rules
    assert DEFAULTS.rules == nvidia.DEFAULTS.rules


def test_an_external_daemon_needs_its_pipe_directory() -> None:
    with pytest.raises(ConfigError, match=r"mps-mode: 'external' .*set mps-pipe"):
        load({"mps-mode": "external"})


def test_a_flag_overrides_the_mode_of_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(
        "{flags: {mpsRoot: /m}, sharing: {memory: {mps: {mode: managed, pipeDirectory: /p}}}}"
    )
    assert load({}, file=file).settings.memory_mps == MemoryMps(is_managed=True)
    external = load({"mps-mode": "external"}, file=file).settings
    assert external.memory_mps == MemoryMps("/p")
    assert load({"mps-mode": "none"}, file=file).settings.memory_mps == MemoryMps()


@pytest.mark.parametrize("name", ["managed", "none"])
def test_options_of_an_external_daemon_without_effect_are_reported(name: str) -> None:
    flags = {"mps-mode": name, "mps-shm": "host", **PIPE, **ROOT}
    for option in ("mps-pipe", "mps-shm"):
        warning = f"{option} has no effect: mps-mode is {name}; it is for external"
        assert warning in load(flags).warnings
    assert load({**PIPE, "mps-shm": "host"}).warnings == ()


def test_a_mode_for_memory_units_that_are_off_is_reported() -> None:
    [warning] = load({"mps-mode": "managed", "memory-devices": "none"}).warnings
    assert warning == "mps-mode has no effect: memory units are off; set memory-devices"


def test_the_settings_in_the_log_are_a_valid_file() -> None:
    for flags, expected in (
        (MANAGED, {"mode": "managed", "check": "require", "namespaces": "auto"}),
        (
            {**PIPE, "mps-shm": "host"},
            {
                "mode": "external",
                "pipeDirectory": "/run/nvidia-mps",
                "check": "require",
                "shm": "/dev/shm",
                "namespaces": "auto",
            },
        ),
    ):
        described = load(flags).settings.describe()
        sharing = described["sharing"]
        assert isinstance(sharing, dict)
        assert sharing["memory"]["mps"] == expected


def namespaces(**flags: str) -> MpsNamespaces:
    names = {name.replace("_", "-"): value for name, value in flags.items()}
    return load({**MANAGED, **names}).settings.mps_namespaces


def test_namespaces_need_a_specification_for_each_container() -> None:
    assert namespaces(bind="cdi") is MpsNamespaces.AUTO
    assert namespaces(bind="cdi", mps_namespaces="require") is MpsNamespaces.REQUIRE
    assert namespaces(bind="cdi", mps_namespaces="off") is MpsNamespaces.OFF
    # Otherwise Allocate's answer also has the directory with all namespaces.
    assert namespaces(bind="auto") is namespaces(bind="env") is MpsNamespaces.OFF
    assert load({**PIPE, "bind": "cdi"}).settings.mps_namespaces is MpsNamespaces.OFF
    # Partitions hold anyway, and need another kind of daemon.
    assert namespaces(bind="cdi", threads="sm_partition") is MpsNamespaces.OFF


@pytest.mark.parametrize(
    "flags",
    [
        {**MANAGED, "bind": "auto"},
        {**MANAGED, "bind": "env"},
        {**PIPE, "bind": "cdi"},
        {**MANAGED, "bind": "cdi", "threads": "sm_partition"},
    ],
)
def test_namespaces_that_are_required_and_impossible_are_an_error(flags: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match=r"mps-namespaces: 'require'.*mps-mode managed and bind"):
        load({**flags, "mps-namespaces": "require"})
