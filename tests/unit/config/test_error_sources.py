"""Errors name the source of the value: a flag, a variable, or a file and its key."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.option_values import collect_option_values

MPS = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.yaml"


def message(text: str, file: Path, env: dict[str, str] | None = None, **flags: str) -> str:
    file.write_text(text)
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    with pytest.raises(ConfigError) as error:
        load_settings(collect_option_values(named, env or {}, OPTIONS), None, file)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Rejected by the parser of the file
        ("flags: {mpsRoot: 5}", "flags.mpsRoot: 5 is not valid"),
        ("version: v2", "version: 'v2' is not valid"),
        (MPS.replace("2", "0"), "sharing.mps.resources[0].replicas: 0 is not valid"),
        # Rejected by the conversion of option values
        (
            "flags: {nested: true}",
            "flags.nested: true is not valid: choose one of off, host, guest",
        ),
        ("flags: {plugin: {deviceIDStrategy: x}}", "flags.plugin.deviceIDStrategy: 'x' is"),
        ("sharing: {memory: {unit: 512}}", "sharing.memory.unit: 512 is not valid"),
        ("imex: {channelIDs: [0, 1]}", "imex.channelIDs: [0, 1] is not valid: use 0"),
        # Rejected by the validation of settings
        ("flags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy: [] is"),
        ("flags: {mpsRoot: mps}", "flags.mpsRoot: 'mps' is not valid"),
        (f"flags: {{mpsRoot: /m, migStrategy: mixed}}\n{MPS}", "flags.migStrategy: 'mixed' is"),
        ("sharing: {memory: {resource: gpu}}", "sharing.memory.resource: 'gpu' is not valid"),
        (
            "sharing: {memory: {resource: nvidia.com/gpu}}",
            "sharing.memory.resource: 'nvidia.com/gpu' is not valid",
        ),
        ("flags: {plugin: {nvidiaCTKPath: x}}", "flags.plugin.nvidiaCTKPath: 'x' is not valid"),
    ],
)
def test_a_value_of_the_file_is_named_by_the_file_and_its_key(
    text: str, expected: str, file: Path
) -> None:
    assert message(text, file).startswith(f"{file}: {expected}")


def test_a_value_of_a_flag_or_a_variable_is_named_by_its_name(file: Path) -> None:
    text = "flags: {mpsRoot: /m}"
    assert message(text, file, mps_root="a").startswith("mps-root: 'a' is not valid")
    assert message(text, file, {"MPS_ROOT": "a"}).startswith("MPS_ROOT: 'a' is not valid")
    both = f"flags: {{mpsRoot: /m, migStrategy: none}}\n{MPS}"
    assert message(both, file, {"MIG_STRATEGY": "mixed"}).startswith("MIG_STRATEGY: 'mixed' is")


def test_a_missing_value_is_named_by_its_flag_and_all_ways_to_set_it(file: Path) -> None:
    text = message(MPS, file)
    assert text.startswith("mps-root: '' is not valid: using MPS requires --mps-root")
    assert "(MPS_ROOT, flags.mpsRoot)" in text


def test_an_invalid_file_is_named_once(file: Path) -> None:
    assert message("sharing: [", file).startswith(f"config-file: '{file}' is not valid: it is not")


def test_without_a_file_the_flag_is_named() -> None:
    with pytest.raises(ConfigError, match=r"^mps-pipe: 'x' is not valid"):
        load_settings(collect_option_values({"mps-pipe": "x"}, {}, OPTIONS))
