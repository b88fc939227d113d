"""Whatever is in a configuration file: it is valid, or there is a ConfigError, in short time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.config.errors import ConfigError
from gpuslice.config.load import load_settings
from gpuslice.config.settings import Settings
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import SlicingError
from tests.unit.slicing.nodes import MEDIUM, SMALL, gpu, mig_gpu

from .hostile import HOSTILE, LARGE_AND_VALID
from .test_file_parser import WHOLE

# Not an assertion about speed: without limits, these files take minutes and gigabytes.
HANG_SECONDS = 30.0
NODE = (gpu(0), gpu(1, "Tesla T4", memory_mib=15360), mig_gpu(2, SMALL, MEDIUM))


def load(path: Path, content: str | bytes) -> Settings | ConfigError:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    try:
        loaded = load_settings({}, None, path)
    except ConfigError as error:
        str(error).encode()  # logs and events are UTF-8
        return error
    return loaded.settings


def use(found: Settings | ConfigError) -> None:
    """Everything that an agent does with settings before it applies them."""
    if isinstance(found, Settings):
        str(found.describe()).encode()
        try:
            catalogue(NODE, found.rules)
        except SlicingError as error:
            str(error).encode()


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_file_is_rejected_in_few_words(name: str, tmp_path: Path) -> None:
    began = time.monotonic()
    found = load(tmp_path / "c", HOSTILE[name])
    assert isinstance(found, ConfigError)
    assert len(str(found)) < 2000
    assert time.monotonic() - began < HANG_SECONDS


@pytest.mark.parametrize("name", LARGE_AND_VALID)
def test_a_large_valid_file_is_accepted(name: str, tmp_path: Path) -> None:
    began = time.monotonic()
    found = load(tmp_path / "c", LARGE_AND_VALID[name])
    assert isinstance(found, Settings)
    use(found)
    assert time.monotonic() - began < HANG_SECONDS


def test_anchors_and_merge_keys_are_supported(tmp_path: Path) -> None:
    text = """
    sharing:
      timeSlicing:
        resources:
        - &shared {name: gpu, replicas: 4, devices: [0]}
        - {<<: *shared, devices: [1]}
    """
    found = load(tmp_path / "c", text)
    assert isinstance(found, Settings)
    assert [rule.devices.references for rule in found.rules.replicas] == [("0",), ("1",)]


def test_the_first_unknown_keys_are_named_and_the_others_are_counted(tmp_path: Path) -> None:
    text = "\n".join(f"verion{number}: 1" for number in range(25))
    message = str(load(tmp_path / "c", text))
    assert "`verion9`; did you mean `version`?" in message
    assert "verion10" not in message
    assert message.endswith("and 15 more unknown keys")


@pytest.mark.parametrize(
    "name", ["nestedEnv", "nestedDir", "mpsRoot", "nvidiaDriverRoot", "nvidiaDevRoot"]
)
def test_a_path_that_no_file_can_have_is_named(name: str, tmp_path: Path) -> None:
    found = load(tmp_path / "c", f"flags: {{nested: guest, {name}: /{'x' * 256}}}")
    assert f"flags.{name}: " in str(found)
    assert "at most 255 between two slashes" in str(found)


# Parts of files, and what a hostile or careless editor puts between them.
FRAGMENTS = st.sampled_from(
    [
        *WHOLE.splitlines(keepends=True), "!!int ", "!!bool ", "!!float ", "!!null ", "!!str ",
        "!!seq ", "!!map ", "!!binary ", "!!timestamp ", "!!set ", "!!merge ", "!x ", "&a ", "*a",
        "<<: *a\n", "<<: ", "? ", ": ", "- ", "[", "]", "{", "}", ",", "'", '"', '"\\ud800"', "|\n",
        '"\\0"', "\\x00", "#", "---\n", "...\n", "%YAML 1.1\n", "\t", "\x00", "\x85", "\ufeff",
        "0x", "-0", "1e999", ".inf", ".nan", "9" * 30, "0b", "1:0", "=", "~", "\N{SNOWMAN}",
        "*" * 40,
    ]
)  # fmt: skip


@settings(max_examples=400)
@given(data=st.data())
def test_any_edit_of_a_valid_file_is_valid_or_a_configuration_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    text = WHOLE
    for _ in range(data.draw(st.integers(1, 4))):
        begin = data.draw(st.integers(0, len(text)))
        removed = data.draw(st.integers(0, 20))
        text = text[:begin] + data.draw(FRAGMENTS) + text[begin + removed :]
    use(load(tmp_path_factory.getbasetemp() / "edited", text))


@settings(max_examples=300)
@given(content=st.binary(max_size=60) | st.lists(FRAGMENTS, max_size=8).map(lambda f: "".join(f)))
def test_any_text_is_valid_or_a_configuration_error(
    content: bytes | str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    use(load(tmp_path_factory.getbasetemp() / "any", content))


SCALARS = (
    "true", "off", "null", "''", "0", "-1", "3.5", "1e400", ".inf", "99999999999999999999",
    "9223372036854775807", "all", "none", "host", "guest", "mixed", "single", "tegra", "GiB",
    "1MiB",
    "999999999GiB", "0MiB", "/", "/a/../b", "relative", f"/{'x' * 300}", "gpu", "nvidia.com/gpu",
    "a" * 300, '"\\u0000"', '"\\ud800"', "'*'", "'a*b*c*'", "example.com/gpu", "1h", "infinite",
    "[]", "[0]", "[0, 0]", "['1:0', all]", "{}", "[[]]", "[{}]", "{name: gpu}", "[null]",
    "[{name: gpu, replicas: 2}]", "[{name: gpu, replicas: 9223372036854775807}]",
    "[{name: gpu, replicas: 2}, {name: gpu, replicas: 3}]", "[{pattern: '*', name: gpu}]",
)  # fmt: skip


@settings(max_examples=400)
@given(data=st.data())
def test_any_value_of_any_key_is_valid_or_a_configuration_error(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Replaces values of a file that has every key."""
    lines = WHOLE.splitlines()
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(lines) - 1))
        head, colon, _ = lines[place].partition(":")
        lines[place] = f"{head}{colon} {data.draw(st.sampled_from(SCALARS))}"
        if data.draw(st.booleans()):
            indent = len(head) - len(head.lstrip(" -"))
            rest = lines[place + 1 :]
            while rest and len(rest[0]) - len(rest[0].lstrip()) > indent:
                rest.pop(0)
            lines = [*lines[: place + 1], *rest]
    use(load(tmp_path_factory.getbasetemp() / "values", "\n".join(lines)))
