import pytest

from gpuslice.cli.goflags import Flag, FlagError, parse, usage

SAMPLE = (Flag("mps", "a switch", False), Flag("v", "a number", 0), Flag("unit", "a text", "GiB"))


@pytest.mark.parametrize(
    "args",
    [
        ["-mps", "-v=5", "-unit=MiB"],
        ["--mps", "--v", "5", "--unit", "MiB"],
        ["--mps=true", "-v", "0x5", "-unit", "MiB"],
        ["-mps=false", "-mps=1", "-v=3", "-v=5", "--unit=MiB"],
    ],
)
def test_flags_are_read_as_go_reads_them(args: list[str]) -> None:
    assert parse(SAMPLE, args).values == {"mps": True, "v": 5, "unit": "MiB"}


@pytest.mark.parametrize(
    ("args", "because"),
    [
        (["--speed"], "flag provided but not defined: -speed"),
        (["-v"], "flag needs an argument: -v"),
        (["-v=x"], "invalid value 'x' for -v"),
        (["-mps=maybe"], "invalid value 'maybe' for -mps"),
        (["start"], "unexpected argument 'start'"),
        (["---mps"], "unexpected argument '---mps'"),
        (["-"], "unexpected argument '-'"),
    ],
)
def test_a_wrong_flag_is_named(args: list[str], because: str) -> None:
    with pytest.raises(FlagError, match=because):
        parse(SAMPLE, args)


def test_the_usage_names_every_flag() -> None:
    text = usage("program", SAMPLE)
    assert "  -unit str\n        a text (default GiB)" in text
    assert "  -mps\n        a switch" in text


def test_a_flag_has_other_names_and_a_list_gathers_its_values() -> None:
    flags = (Flag("root", "a text", "", aliases=("old-root",)), Flag("ids", "", "", repeats=True))
    parsed = parse(flags, ["--old-root=/a", "--ids=1", "--ids=2,3", "--root=/b"])
    assert parsed.given_texts() == {"root": "/b", "ids": "1,2,3"}
