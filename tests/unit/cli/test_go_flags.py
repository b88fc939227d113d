"""The parser for the command lines of daemons."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cli.go_flags import FlagError, parse_flags
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.option_definition import Option, OptionKind

SAMPLE = (
    Option("mps", "", kind=OptionKind.SWITCH),
    Option("v", "", kind=OptionKind.NUMBER),
    Option("unit", ""),
    Option("root", "", aliases=("old-root", "r")),
    Option("ids", "", kind=OptionKind.LIST),
    Option("secret", "", kind=OptionKind.VARIABLE),
)
FLAGS = [option for option in OPTIONS if option.is_flag]

dashes = st.sampled_from(["-", "--"])
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
own_or_drop_in = pytest.mark.parametrize("negatable", [False, True], ids=["drop-in", "own"])


@pytest.mark.parametrize(
    "args",
    [
        ["-mps", "-v=5", "-unit=MiB"],
        ["--mps", "--v", "5", "--unit", "MiB"],
        ["--mps=true", "-v", "0x5", "-unit", "MiB"],
        ["-mps=false", "-mps=1", "-v=3", "-v=5", "--unit=MiB"],
    ],
)
def test_flags_are_parsed_as_go_parses_them(args: list[str]) -> None:
    assert parse_flags(SAMPLE, args) == {"mps": "true", "v": "5", "unit": "MiB"}


def test_a_flag_has_aliases_and_a_list_collects_its_values() -> None:
    args = ["--old-root=/a", "--ids=1", "--ids=2,3", "-r", "/b"]
    assert parse_flags(SAMPLE, args) == {"root": "/b", "ids": "1,2,3"}


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {}),
        (["--mig-strategy", "single"], {"mig-strategy": "single"}),
        (["--mig-strategy=single"], {"mig-strategy": "single"}),
        (["--fail-on-init-error"], {"fail-on-init-error": "true"}),
        (["--no-fail-on-init-error"], {"fail-on-init-error": "false"}),
        (["--fail-on-init-error=false"], {"fail-on-init-error": "false"}),
        (["--fail-on-init-error=1"], {"fail-on-init-error": "true"}),
        (["--gds-enabled", "--no-gds-enabled"], {"gds-enabled": "false"}),
        # A flag takes the next word as its value, even if it starts with a dash.
        (["--mps-pipe", "--gds-enabled=false"], {"mps-pipe": "--gds-enabled=false"}),
        (["--mps-pipe", "--help"], {"mps-pipe": "--help"}),
        (["--mps-pipe=a=b"], {"mps-pipe": "a=b"}),
        (["--nvidia-driver-root", "/d"], {"driver-root": "/d"}),
        (["--device-list-strategy=envvar,cdi-cri"], {"device-list-strategy": "envvar,cdi-cri"}),
        (
            ["--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"],
            {"device-list-strategy": "envvar,cdi-cri"},
        ),
        (["--mps-pipe", ""], {"mps-pipe": ""}),
    ],
)
def test_the_flags_of_the_agent(args: list[str], expected: dict[str, str]) -> None:
    assert parse_flags(OPTIONS, args, negatable=True) == expected


@own_or_drop_in
@pytest.mark.parametrize(
    ("text", "value"),
    [
        *((text, "true") for text in ("1", "t", "T", "true", "TRUE", "True")),
        *((text, "false") for text in ("0", "f", "F", "false", "FALSE", "False")),
    ],
)
def test_a_switch_accepts_the_booleans_of_go(text: str, value: str, *, negatable: bool) -> None:
    for args in ([f"--gds-enabled={text}"], ["--gds-enabled", f"--gds-enabled={text}"]):
        assert parse_flags(OPTIONS, args, negatable=negatable) == {"gds-enabled": value}


@own_or_drop_in
@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["--speed"], "flag provided but not defined: -speed$"),
        (["--secret=x"], "flag provided but not defined: -secret$"),
        (["--unti=x"], r"flag provided but not defined: -unti \(did you mean --unit\?\)"),
        (["-v"], "flag needs an argument: -v"),
        (["-v=x"], "invalid value 'x' for -v: use a number"),
        (["-mps=maybe"], "invalid value 'maybe' for -mps: use true or false"),
        (["-mps="], "invalid value '' for -mps: use true or false"),
        (["-mps", "false"], "unexpected argument 'false': .*--mps=false"),
        (["-mps=true", "false"], "unexpected argument 'false': only flags"),
        (["--unit", "true", "false"], "unexpected argument 'false': only flags"),
        (["start"], "unexpected argument 'start'"),
        (["-mps", "start"], "unexpected argument 'start': only flags"),
        (["---mps"], "unexpected argument '---mps'"),
        (["--"], "unexpected argument '--'"),
        (["-"], "unexpected argument '-'"),
        (["-=x"], "unexpected argument '-=x'"),
    ],
)
def test_an_invalid_command_line_is_rejected(
    args: list[str], error: str, *, negatable: bool
) -> None:
    with pytest.raises(FlagError, match=error):
        parse_flags(SAMPLE, args, negatable=negatable)


def test_the_error_names_the_flag_that_is_not_valid_among_those_of_the_agent() -> None:
    for args, error in (
        (["--mig-stratagy=none"], r"not defined: -mig-stratagy \(did you mean --mig-strategy\?\)"),
        (["--pass-device-specs", "false"], r"'false'.*--pass-device-specs=false"),
        (["--mig-strategy"], "flag needs an argument: -mig-strategy"),
        (["--pass-device-specs=on"], "invalid value 'on' for -pass-device-specs"),
    ):
        with pytest.raises(FlagError, match=error):
            parse_flags(OPTIONS, args)


def test_only_own_commands_have_a_negative_form_of_a_switch() -> None:
    assert parse_flags(SAMPLE, ["--no-mps"], negatable=True) == {"mps": "false"}
    with pytest.raises(FlagError, match="not defined: -no-mps"):
        parse_flags(SAMPLE, ["--no-mps"])
    with pytest.raises(FlagError, match=r"-no-mps does not take a value: use --no-mps or --mps"):
        parse_flags(SAMPLE, ["--no-mps=true"], negatable=True)
    with pytest.raises(FlagError, match="not defined: -no-unit"):
        parse_flags(SAMPLE, ["--no-unit"], negatable=True)


def test_a_switch_whose_name_starts_with_no_has_both_forms() -> None:
    option = Option("no-timestamp", "", kind=OptionKind.SWITCH)
    for args, value in ((["--no-timestamp"], "true"), (["--no-no-timestamp"], "false")):
        assert parse_flags([option], args, negatable=True) == {"no-timestamp": value}


@st.composite
def written(draw: st.DrawFn, *, negatable: bool) -> tuple[Option, str, list[str]]:
    """An option, a value, and one of the ways to write them."""
    option = draw(st.sampled_from(FLAGS))
    alias = draw(st.sampled_from([option.name, *option.aliases]))
    name = draw(dashes) + alias
    if option.kind is not OptionKind.SWITCH:
        value = draw(words)
        return option, value, draw(st.sampled_from([[f"{name}={value}"], [name, value]]))
    value = draw(st.sampled_from(["true", "false"]))
    forms = [f"{name}={value}"]
    if value == "true":
        forms.append(name)
    elif negatable:
        forms.append(f"{draw(dashes)}no-{alias}")
    return option, value, [draw(st.sampled_from(forms))]


@own_or_drop_in
@given(data=st.data())
def test_every_way_to_write_a_flag_is_understood(data: st.DataObject, *, negatable: bool) -> None:
    flags = data.draw(st.lists(written(negatable=negatable)))
    expected: dict[str, str] = {}
    for option, value, _ in flags:
        if option.kind is OptionKind.LIST and option.name in expected:
            expected[option.name] += f",{value}"
        else:
            expected[option.name] = value
    args = [arg for _, _, form in flags for arg in form]
    assert parse_flags(OPTIONS, args, negatable=negatable) == expected


names = st.sampled_from(
    [
        prefix + name
        for option in FLAGS
        for name in (option.name, *option.aliases)
        for prefix in ("-", "--", "--no-")
    ]
)
values = st.sampled_from(["", "x", "a,b", "a=b", "true", "F", "0", "-x", "--help", "é "])


@own_or_drop_in
@given(args=st.lists(words | names | values | st.builds("{}={}".format, names, values)))
def test_any_command_line_is_parsed_or_rejected_with_a_reason(
    args: list[str], *, negatable: bool
) -> None:
    with contextlib.suppress(FlagError):
        parse_flags(OPTIONS, args, negatable=negatable)
