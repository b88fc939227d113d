from pathlib import Path

import pytest

from gpuslice.config.errors import ConfigError
from gpuslice.config.load import Given, load_settings
from gpuslice.config.settings import MpsCheck, Settings
from gpuslice.slicing.limits import ThreadShare
from gpuslice.slicing.units import MemoryUnit

FILE = """
version: v1
flags: {failOnInitError: false}
sharing:
  memory:
    resource: example.com/gpu-mem
    unit: 256MiB
    reserve: 512MiB
    threads: none
    mps: {pipeDirectory: /run/mps, check: auto}
health: {enabled: false}
"""


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(FILE)
    return path


def test_without_any_source_the_defaults_hold() -> None:
    settings = load_settings(Given())
    assert settings == Settings()
    assert settings.plugin_socket == "aliyungpushare.sock"


def test_a_file_fills_what_nobody_said(config_file: Path) -> None:
    assert load_settings(Given(config_file=str(config_file))) == Settings(
        resource="example.com/gpu-mem",
        memory_unit=MemoryUnit(256),
        memory_reserve_mib=512,
        threads=ThreadShare.NONE,
        mps_pipe="/run/mps",
        mps_check=MpsCheck.AUTO,
        health_checks=False,
        fail_on_init_error=False,
    )


def test_a_flag_wins_over_the_file(config_file: Path) -> None:
    given = Given(
        config_file=str(config_file), memory_unit="GiB", mps_pipe="", fail_on_init_error=True
    )
    settings = load_settings(given)
    assert settings.memory_unit == MemoryUnit(1024)
    assert settings.mps_pipe is None
    assert settings.fail_on_init_error
    assert settings.resource == "example.com/gpu-mem"


def test_an_empty_file_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "empty.yaml"
    path.write_text("")
    assert load_settings(Given(config_file=str(path))) == Settings()


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("sharing:\nflags:\n", Settings()),
        ("sharing: {memory: {mps: {check: off}}}", Settings(mps_check=MpsCheck.OFF)),
        ("sharing: {memory: {reserve: 0}}", Settings()),
    ],
)
def test_yaml_as_people_write_it(tmp_path: Path, text: str, settings: Settings) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    assert load_settings(Given(config_file=str(path))) == settings


def test_another_resource_has_a_socket_of_its_own() -> None:
    assert Settings(resource="a.com/b").plugin_socket == "gpuslice-a.com_b.sock"


@pytest.mark.parametrize(
    ("text", "because"),
    [
        ("sharing: {memory: {untis: GiB}}", r"unknown field `untis`.*did you mean `unit`\?"),
        ("shraing: {}", r"unknown field `shraing`.*did you mean `sharing`\?"),
        ("zzz: 1", "unknown field `zzz`.*remove it"),
        ("version: v2", "Invalid enum value 'v2'.*version"),
        ("sharing: {memory: {mps: {check: on}}}", "mps.check: True is not valid"),
        ("sharing: {memory: {unit: 5}}", r"Expected `str \| null`, got `int`.*sharing.memory.unit"),
        ("sharing: [", "is not YAML"),
        ("- a", "Expected `object`"),
    ],
)
def test_a_wrong_file_is_refused_with_field_and_remedy(
    tmp_path: Path, text: str, because: str
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"(?s){because}"):
        load_settings(Given(config_file=str(path)))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml.*No such file"):
        load_settings(Given(config_file=str(tmp_path / "nowhere.yaml")))


@pytest.mark.parametrize(
    ("given", "because"),
    [
        (Given(memory_unit="6GB"), "memory-unit: '6GB' is not valid.*256MiB or 2GiB"),
        (Given(memory_reserve="x"), "memory-reserve: 'x' is not valid"),
        (Given(threads="half"), "threads: 'half' is not valid: choose one of proportional, none"),
        (Given(mps_check="maybe"), "mps-check: 'maybe'.*require, auto, off"),
        (Given(resource="gpu-mem"), "resource: 'gpu-mem' is not valid: use domain/name"),
        (Given(resource="a.kubernetes.io/x"), "the kubelet keeps kubernetes.io for itself"),
        (Given(resource=f"a.com/{'x' * 64}"), "1 to 63 characters"),
        (Given(mps_pipe="mps"), "mps-pipe: 'mps' is not valid: use an absolute path"),
        (Given(mps_pipe="/" + "x" * 99), "path of 108 bytes and may have 107"),
        (Given(kubelet_socket="kubelet.sock"), "kubelet-socket: .*use an absolute path"),
    ],
)
def test_a_wrong_value_is_refused_with_field_value_and_remedy(given: Given, because: str) -> None:
    with pytest.raises(ConfigError, match=because):
        load_settings(given)


def test_the_longest_pipe_directory_that_fits_is_accepted() -> None:
    assert load_settings(Given(mps_pipe="/" + "x" * 98)).mps_pipe == "/" + "x" * 98
