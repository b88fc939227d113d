import pytest

from gpuslice.cli.goflags import Flag, FlagError, parse, usage
from gpuslice.cli.gpushare import FLAGS, given_by

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


def test_the_command_line_of_a_gpushare_daemonset_is_understood() -> None:
    args = "-logtostderr --v=5 --memory-unit=GiB --mps-pipe=/root/nvidia-mps --mps --health-check"
    given = given_by(parse(FLAGS, args.split()))
    assert given.memory_unit == "GiB"
    assert given.mps_pipe == "/root/nvidia-mps"
    assert given.health_checks


@pytest.mark.parametrize(
    ("args", "pipe"),
    [
        ([], None),
        (["--mps"], "/tmp/nvidia-mps"),
        (["--mps-pipe=/a"], "/a"),
        (["--mps=false", "--mps-pipe=/a"], None),
    ],
)
def test_mps_is_on_when_asked_for_or_when_its_directory_is_given(
    args: list[str], pipe: str | None
) -> None:
    assert given_by(parse(FLAGS, args)).mps_pipe == pipe


def test_an_unknown_unit_becomes_gib_as_it_does_upstream() -> None:
    assert given_by(parse(FLAGS, ["--memory-unit=GB"])).memory_unit == "GiB"
    assert given_by(parse(FLAGS, ["--memory-unit=256MiB"])).memory_unit == "256MiB"
