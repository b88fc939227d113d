"""The documentation names what the program has."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from gpuslice.cli.gpushare import GPUSHARE_OPTIONS

DOCS = Path(__file__).parents[2] / "docs"


def test_every_flag_of_gpushare_is_documented() -> None:
    text = (DOCS / "compatibility.md").read_text()
    glog = {"alsologtostderr", "stderrthreshold", "log_dir", "log_backtrace_at", "vmodule"}
    for option in GPUSHARE_OPTIONS:
        assert option.name in glog or re.search(rf"`--?{option.name}`", text), option.name


def test_the_generated_parts_are_current() -> None:
    """Run `make docs` if they are not."""
    command = [sys.executable, str(DOCS / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("page", "at_least"), [("security.md", 50), ("limits.md", 25)])
def test_the_tests_that_a_page_names_exist(page: str, at_least: int) -> None:
    named = set(re.findall(r"`(test_\w+)`", (DOCS / page).read_text()))
    defined = {
        name
        for file in DOCS.with_name("tests").rglob("test_*.py")
        for name in re.findall(r"^(?:async )?def (test_\w+)\(", file.read_text(), re.MULTILINE)
    }
    assert len(named) >= at_least
    assert sorted(named - defined) == []
