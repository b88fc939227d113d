"""Every option of the agent: its flag, aliases, variables, file key and effect."""

from __future__ import annotations

from functools import reduce
from pathlib import Path

import pytest

from gpuslice.cli.go_flags import parse_flags
from gpuslice.cli.nvidia import DEFAULTS
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_definition import OptionKind
from gpuslice.config.option_values import collect_option_values
from gpuslice.config.settings import (
    Settings,
)
from gpuslice.slicing.rules import Policy

from .agent_option_rows import ROWS, Row

every_row = pytest.mark.parametrize("row", ROWS, ids=str)


def loaded(
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    file: Path | None = None,
    defaults: Settings = DEFAULTS,
) -> Settings:
    given = collect_option_values(parse_flags(OPTIONS, args), env or {}, OPTIONS)
    return load_settings(given, defaults, file).settings


def value(
    row: Row,
    args: tuple[str, ...] = (),
    env: dict[str, str] | None = None,
    file: Path | None = None,
) -> object:
    settings = loaded(args, env, file, row.defaults)
    return reduce(getattr, row.attribute.split("."), settings)


@every_row
def test_an_option_that_is_not_set_has_its_default(row: Row) -> None:
    assert value(row) == row.default


@every_row
def test_a_flag_works_with_each_of_its_names(row: Row) -> None:
    for name in (row.flag, *row.aliases):
        assert value(row, (f"--{name}={row.text}",)) == row.value
        assert value(row, (f"-{name}={row.text}",)) == row.value


@every_row
def test_a_variable_works_with_each_of_its_names(row: Row) -> None:
    for name in (row.variable, *row.variables):
        assert value(row, env={name: row.text}) == row.value


@every_row
def test_an_empty_variable_is_ignored(row: Row) -> None:
    assert value(row, env={row.variable: ""}) == row.default


@pytest.mark.parametrize("row", [row for row in ROWS if row.yaml], ids=str)
def test_the_file_sets_the_option(row: Row, tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    assert value(row, file=file) == row.value


@every_row
def test_a_flag_overrides_a_variable_and_a_variable_the_file(row: Row, tmp_path: Path) -> None:
    default = next(option for option in OPTIONS if option.name == row.flag).default
    plain = {"the driver root": "/", "": ""}.get(default, default)
    # Their defaults differ between the programs.
    of_nvidia = {
        "memory-devices": "none",
        "bind": "env",
        "memory-limits": "off",
        "memory-reserve": "auto",
    }
    plain = of_nvidia.get(row.flag, plain)
    file = tmp_path / "config.yaml"
    file.write_text(row.yaml)
    other = {row.variable: row.text}
    if plain:
        assert value(row, env={row.variable: plain}, file=file) == row.default
    assert value(row, (f"--{row.flag}={plain}",), other, file) == row.default


@pytest.mark.parametrize(
    ("row", "invalid"), [(row, invalid) for row in ROWS for invalid in row.invalid], ids=str
)
def test_an_invalid_value_is_rejected_with_its_source(row: Row, invalid: str) -> None:
    flag = [f"--{row.flag}={invalid}"]
    if next(option for option in OPTIONS if option.name == row.flag).kind is OptionKind.SWITCH:
        flag = []  # the parser of the command line rejects it
    if flag:
        with pytest.raises(ConfigError, match=row.flag):
            loaded(tuple(flag))
    if invalid:
        with pytest.raises(ConfigError, match=f"{row.flag}|{row.variable}"):
            loaded(env={row.variable: invalid})


def test_every_option_that_is_a_setting_has_a_row() -> None:
    elsewhere = {
        # Read at startup: test_startup_options.py, test_commands.py.
        "config-file", "lenient", "config-file-srcdir", "node-name", "node-label", "pod-name",
        "default-config", "fallback-strategies", "kubeconfig", "labels", "metrics-address",
        "log-level", "log-format",
        # Settings that depend on others: test_load.py, test_memory_mps.py.
        "disabled-xids", "enabled-xids", "nested-env", "nested-devices",
        "mps-mode",
    }  # fmt: skip
    assert {option.name for option in OPTIONS} == {row.flag for row in ROWS} | elsewhere


def test_a_row_has_a_file_key_if_the_option_has_one() -> None:
    with_key = {option.name for option in OPTIONS if option.key}
    assert with_key == {row.flag for row in ROWS if row.yaml} | {"nested-env", "mps-mode"}


def test_names_and_variables_are_used_once() -> None:
    names = [name for option in OPTIONS for name in (option.name, *option.aliases)]
    variables = [name for option in OPTIONS for name in option.variables]
    assert len(names) == len(set(names))
    assert len(variables) == len(set(variables))
    assert all(option.variables for option in OPTIONS)


@pytest.mark.parametrize("text", ["1", "t", "T", "true", "TRUE", "True"])
def test_a_variable_accepts_the_true_values_of_go(text: str) -> None:
    assert loaded(env={"PASS_DEVICE_SPECS": text}).containers.pass_device_specs


@pytest.mark.parametrize("text", ["0", "f", "F", "false", "FALSE", "False"])
def test_a_variable_accepts_the_false_values_of_go(text: str) -> None:
    assert not loaded(env={"FAIL_ON_INIT_ERROR": text}).fail_on_init_error


def test_the_first_of_two_variables_of_an_option_wins() -> None:
    env = {"NVIDIA_CTK_PATH": "/old", "NVIDIA_CDI_HOOK_PATH": "/new"}
    assert loaded(env=env).cdi.hook_path == "/new"


def test_the_dev_root_is_the_driver_root_unless_it_is_set() -> None:
    assert loaded(("--driver-root=/d",)).containers.dev_root == "/d"
    assert loaded(("--driver-root=/d", "--dev-root=/e")).containers.dev_root == "/e"


def test_an_empty_kubelet_socket_turns_registration_off() -> None:
    assert loaded(("--kubelet-socket=",)).kubelet_socket == ""


def test_the_policy_spread_is_accepted() -> None:
    assert loaded(("--shared-devices-allocation-policy=spread",)).policy is Policy.SPREAD
