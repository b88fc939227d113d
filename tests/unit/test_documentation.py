"""The documentation names what the program has."""

import re
from pathlib import Path

import typer.main

from gpuslice.cli.gpushare import FLAGS
from gpuslice.cli.main import app
from gpuslice.config.file import ConfigFile, all_keys

DOCS = Path(__file__).parents[2] / "docs"


def test_every_setting_of_the_agent_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    agent = typer.main.get_command(app).commands["agent"]  # type: ignore[attr-defined]
    for option in agent.params:
        if option.name == "help":
            continue
        assert f"`{option.opts[0]}`" in text
        assert f"`{option.envvar}`" in text


def test_every_key_of_the_file_is_documented() -> None:
    text = (DOCS / "configuration.md").read_text()
    for key in all_keys(ConfigFile):
        assert re.search(rf"[`.]{key}[`.]|^ *{key}:", text, re.MULTILINE), key


def test_every_flag_of_gpushare_is_documented() -> None:
    text = (DOCS / "compatibility.md").read_text()
    glog = {"alsologtostderr", "stderrthreshold", "log_dir", "log_backtrace_at", "vmodule"}
    for flag in FLAGS:
        assert flag.name in glog or re.search(rf"`--?{flag.name}`", text), flag.name
