"""The documentation names every label and every option."""

from __future__ import annotations

import re
from pathlib import Path

from gpuslice.labels.label_options import PUBLISHING_OPTIONS
from gpuslice.slicing.rules import MemoryRule, MigStrategy, Rules

from .nodes import A100, SMALL, T4, cut, labels, several

TEXT = (Path(__file__).parents[3] / "docs" / "labels.md").read_text()


def documented() -> set[str]:
    """Names between backticks, with `{a,b}` spelled out."""
    found = set()
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    for name in re.findall(r"`([^`]+)`", prose):
        match = re.fullmatch(r"(.*)\{(.+)\}", name)
        found |= {match[1] + part for part in match[2].split(",")} if match else {name}
    return found


def test_every_option_is_documented() -> None:
    for option in PUBLISHING_OPTIONS:
        assert f"--{option.name}" in documented()
        assert set(option.variables) <= documented()


def test_every_label_is_documented() -> None:
    first, second = several(A100, 2)
    found = [
        *labels([T4], Rules(memory=MemoryRule()), timestamp=1),
        *labels([cut(first, SMALL), second], Rules(mig_strategy=MigStrategy.MIXED)),
    ]
    for key in found:
        name = re.sub(r"^mig-1g\.5gb\.", "", key.removeprefix("gpuslice.io/"))
        name = re.sub(r"^gpu\.(Tesla-T4|NVIDIA-A100-SXM4-40GB)\.", "gpu.<model>.", name)
        name = re.sub(r"^resource\.\w+\.com_[\w\-]+(\.5gb)?\.", "resource.<domain>_<name>.", name)
        assert name in documented(), key
