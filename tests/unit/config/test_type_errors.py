"""Error messages for a value of the wrong type: its key, the value and a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuslice.config.errors import ConfigError
from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.load import load_settings
from gpuslice.config.unknown_keys import all_keys

REPLICAS = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: %s}]}}"
PLACE = "sharing.timeSlicing.resources[0].replicas"
NAME = "sharing: {mps: {resources: [{name: gpu, replicas: 2}, {name: %s}]}}"


def message(text: str, directory: Path) -> str:
    path = directory / "config.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError) as error:
        load_settings({}, None, path)
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # A whole number
        (
            REPLICAS % '"4"',
            f"{PLACE}: '4' is not valid: use a whole number; write 4 without quotes",
        ),
        (REPLICAS % "many", f"{PLACE}: 'many' is not valid: use a whole number"),
        (REPLICAS % "2.5", f"{PLACE}: 2.5 is not valid: use a whole number"),
        (
            REPLICAS % "yes",
            f"{PLACE}: true is not valid: use a whole number; YAML reads a bare on or yes as true",
        ),
        (
            REPLICAS % "[4]",
            f"{PLACE}: [4] is not valid: use a whole number; write 4 without the list",
        ),
        (REPLICAS % "{a: 4}", f'{PLACE}: {{"a": 4}} is not valid: use a whole number'),
        # True or false
        (
            'flags: {failOnInitError: "false"}',
            (
                "flags.failOnInitError: 'false' is not valid: use true or false; "
                "write false without quotes"
            ),
        ),
        (
            'flags: {failOnInitError: "Off"}',
            (
                "flags.failOnInitError: 'Off' is not valid: use true or false; "
                "write false without quotes"
            ),
        ),
        (
            "flags: {plugin: {passDeviceSpecs: maybe}}",
            "flags.plugin.passDeviceSpecs: 'maybe' is not valid: use true or false",
        ),
        ("health: {enabled: 1}", "health.enabled: 1 is not valid: use true or false"),
        # A text
        (
            "flags: {mpsRoot: 5}",
            'flags.mpsRoot: 5 is not valid: use a string; put it in quotes: "5"',
        ),
        (
            "flags: {migStrategy: off}",
            (
                "flags.migStrategy: false is not valid: use a string; "
                "YAML reads a bare off or no as false; put the word in quotes"
            ),
        ),
        (
            NAME % "on",
            (
                "sharing.mps.resources[1].name: true is not valid: use a string; "
                "YAML reads a bare on or yes as true; put the word in quotes"
            ),
        ),
        (
            "flags: {migStrategy: [single]}",
            (
                'flags.migStrategy: ["single"] is not valid: use a string; '
                "write single without the list"
            ),
        ),
        ("flags: {mpsRoot: {}}", "flags.mpsRoot: {} is not valid: use a string"),
        # A list
        (
            "resources: {gpus: {pattern: a, name: b}}",
            (
                'resources.gpus: {"pattern": "a", "name": "b"} is not valid: use a list; '
                "start each entry with a dash"
            ),
        ),
        (
            "imex: {channelIDs: 0}",
            "imex.channelIDs: 0 is not valid: use a list; for a list of one, write [0]",
        ),
        # No hint if the value would not be valid as an entry either.
        ("imex: {channelIDs: x}", "imex.channelIDs: 'x' is not valid: use a list"),
        (
            "sharing: {mps: {resources: gpu}}",
            "sharing.mps.resources: 'gpu' is not valid: use a list",
        ),
        (
            "health: {enabled: [true]}",
            "health.enabled: [true] is not valid: use true or false; write true without the list",
        ),
        (
            "flags: {migStrategy: [1]}",
            "flags.migStrategy: [1] is not valid: use a string",
        ),
        (
            'imex: {channelIDs: [0, "1"]}',
            "imex.channelIDs[1]: '1' is not valid: use a whole number; write 1 without quotes",
        ),
        # One of several
        (
            "sharing: {memory: {devices: {a: 1}}}",
            (
                'sharing.memory.devices: {"a": 1} is not valid: '
                "use a string, a whole number or a list; start each entry with a dash"
            ),
        ),
        (
            "sharing: {memory: {devices: [0, yes]}}",
            (
                "sharing.memory.devices[1]: true is not valid: use a string or a whole number; "
                "YAML reads a bare on or yes as true; put the word in quotes"
            ),
        ),
        (
            "flags: {gfd: {sleepInterval: off}}",
            (
                "flags.gfd.sleepInterval: false is not valid: use a string or a number; "
                "YAML reads a bare off or no as false; put the word in quotes"
            ),
        ),
        # Keys with values
        (
            "health: off",
            (
                "health: false is not valid: use a section with these keys: enabled; "
                "YAML reads a bare off or no as false"
            ),
        ),
        (
            "imex: [0]",
            (
                "imex: [0] is not valid: use a section with these keys: channelIDs, required; "
                "remove the dashes or brackets of the list"
            ),
        ),
        (
            "sharing: {memory: all}",
            (
                "sharing.memory: 'all' is not valid: use a section with these keys: "
                "resource, devices, unit, reserve, threads, advertise, ids, mps"
            ),
        ),
        (
            "resources: {mig: [small]}",
            (
                "resources.mig[0]: 'small' is not valid: use a section with these keys: "
                "pattern, name, nested"
            ),
        ),
    ],
)
def test_the_message_has_the_key_the_value_and_a_remedy(
    text: str, expected: str, tmp_path: Path
) -> None:
    assert message(text, tmp_path) == f"{tmp_path / 'config.yaml'}: {expected}"


@pytest.mark.parametrize(
    "value", [f"[{', '.join(['gpu'] * 99)}]", "{? null : 1}", "{1.5: [.nan, {2: true}]}"]
)
def test_any_value_can_be_shown_and_a_long_one_is_shortened(value: str, tmp_path: Path) -> None:
    found = message(f"flags: {{mpsRoot: {value}}}", tmp_path)
    assert found.startswith(f"{tmp_path / 'config.yaml'}: flags.mpsRoot: ")
    assert "is not valid: use a string" in found
    assert len(found) < 300 + len(str(tmp_path / "config.yaml"))


def test_a_number_of_any_length_in_quotes_is_rejected(tmp_path: Path) -> None:
    assert "use a whole number" in message(REPLICAS % f'"{"9" * 4000}"', tmp_path)


LISTS = {
    "resources.gpus",
    "resources.mig",
    "sharing.timeSlicing.resources",
    "sharing.mps.resources",
}
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


def document(path: str, value: object) -> object:
    """The value at its key, in a list of one entry where the schema has a list."""
    while path:
        path, _, key = path.rpartition(".")
        value = {key: value}
        if path in LISTS:
            value = [value]
    return value


@settings(deadline=None)
@given(path=st.sampled_from(sorted(all_keys(ConfigFile))), value=VALUES)
def test_no_value_causes_a_message_of_the_library(
    tmp_path_factory: pytest.TempPathFactory, path: str, value: object
) -> None:
    file = tmp_path_factory.getbasetemp() / "any.json"
    file.write_text(json.dumps(document(path, value)))
    try:
        load_settings({}, None, file)
        found = ""
    except ConfigError as error:
        found = str(error)
    assert "Expected `" not in found
    assert "`$" not in found
