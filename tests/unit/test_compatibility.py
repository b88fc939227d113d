"""docs/compatibility.md leaves nothing out: no option, no key, no label, no accepted difference."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from gpuslice.cli.config_manager import MANAGER_OPTIONS
from gpuslice.config.agent_options import OPTIONS
from gpuslice.config.file_schema import ConfigFile
from gpuslice.config.option_definition import Option
from gpuslice.config.unknown_keys import all_keys
from gpuslice.gpus.node_facts import Vgpu
from gpuslice.gpus.nvml import Fabric
from gpuslice.labels.gpuslice_labels import binding_labels, tier_labels
from gpuslice.labels.label_options import GFD_OPTIONS, LABELS_OPTIONS
from gpuslice.slicing.rules import MemoryRule, MigStrategy, Rules, SharingStrategy
from gpuslice.slicing.tiers import Tier
from tests.peers.agreement.differences import ACCEPTED, ACCEPTED_IN_CDI, Difference
from tests.unit.labels.nodes import A100, FACTS, LARGE, SMALL, T4, cut, labels, several, shared

TEXT = (Path(__file__).parents[2] / "docs" / "compatibility.md").read_text()
NVIDIA = TEXT.partition("## NVIDIA's device plugin")[2]
VERDICTS = {"same", "better", "own", "not applicable"}


def rows(text: str) -> list[list[str]]:
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("|")
    ]


def section(title: str) -> str:
    _, found, after = NVIDIA.partition(f"\n### {title}\n")
    assert found, title
    return after.partition("\n### ")[0]


def names(cell: str) -> set[str]:
    return set(re.findall(r"`([^`]+)`", cell))


def has_row(option: Option, text: str) -> bool:
    """With all names of the flag and all of its variables, and no others."""
    words = (option.name, *option.aliases) if option.is_flag else ()
    flags = {f"-{word}" if len(word) == 1 else f"--{word}" for word in words}
    return any(
        flags == names(flag) and set(option.variables) == names(variables)
        for flag, variables, *_ in rows(text)
    )


# Options and keys


@pytest.mark.parametrize("option", OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_agent_has_a_row_with_all_its_names(option: Option) -> None:
    assert has_row(option, NVIDIA)


@pytest.mark.parametrize("option", GFD_OPTIONS, ids=lambda option: option.name)
def test_every_option_of_feature_discovery_has_a_row_with_all_its_names(option: Option) -> None:
    assert has_row(option, section("Feature discovery"))


@pytest.mark.parametrize(
    "option", [o for o in GFD_OPTIONS if o.is_flag], ids=lambda option: option.name
)
def test_a_row_of_feature_discovery_names_the_key_of_the_file(option: Option) -> None:
    table = section("Feature discovery").partition("`mps-control-daemon`")[0]
    [row] = [row for row in rows(table) if f"--{option.name}" in names(row[0])]
    assert names(row[2]) == ({option.key} if option.key else set())


@pytest.mark.parametrize("option", LABELS_OPTIONS, ids=lambda option: option.name)
def test_every_option_of_our_own_labels_command_has_a_row(option: Option) -> None:
    assert has_row(option, NVIDIA)


@pytest.mark.parametrize("option", MANAGER_OPTIONS, ids=lambda option: option.name)
def test_every_option_of_the_config_manager_has_a_row_with_all_its_names(option: Option) -> None:
    assert has_row(option, section("Choosing a configuration by the node's label"))


@pytest.mark.parametrize("key", list(all_keys(ConfigFile)))
def test_every_key_of_the_file_has_a_row(key: str) -> None:
    assert any(key in names(cell) for row in rows(NVIDIA) for cell in row[:3])


# Labels

FABRIC = Fabric("b4d1a3c0-0000-0000-0000-000000000001", 7)
NODES = (
    [T4],
    [A100],
    [cut(A100, SMALL, SMALL)],
    [cut(A100, SMALL, LARGE)],
    [cut(replace(A100, uuid="GPU-cut"), SMALL), *several(T4, 2, first=1)],
)
FACTS_OF_NODES = (
    FACTS,
    replace(FACTS, fabrics=(FABRIC,), vgpus=(Vgpu("460.16", "r460_00"),)),
)
SLICED = ((), (shared(SharingStrategy.TIME_SLICING, 4),))
# Read by us or by charts.
NOT_MADE = {"nvidia.com/device-plugin.config", "nvidia.com/gpu.present"}


def made() -> set[str]:
    """Every label that some node has, without what is the node's own in it."""
    rules = [
        Rules(mig_strategy=strategy, replicas=replicas, memory=memory)
        for strategy, replicas, memory in itertools.product(
            MigStrategy, SLICED, (None, MemoryRule())
        )
    ]
    rules.append(Rules(replicas=(shared(SharingStrategy.MPS, 4, rename="nvidia.com/gpu.mps"),)))
    found = (
        key
        for gpus, facts, rule in itertools.product(NODES, FACTS_OF_NODES, rules)
        for key in labels(gpus, rule, facts, timestamp=1)
    )
    # The agent adds them: they depend on the container runtime, and on what the agent may do.
    tiers = tier_labels({"nvidia.com/gpu": Tier.DRIVER})
    return set(map(general, (*found, *tiers))) | binding_labels("cdi", namespaces=True).keys()


def general(key: str) -> str:
    if not key.startswith("gpuslice.io/"):
        return "nvidia.com/" + re.sub(r"^mig-\d+g\.\d+gb\.", "mig-<profile>.", key)
    key = re.sub(r"/gpu\.(Tesla-T4|NVIDIA-A100-SXM4-40GB)\.", "/gpu.<model>.", key)
    return re.sub(r"/resource\..+\.(\w+)$", r"/resource.<domain>_<name>.\1", key)


def test_every_label_has_a_row_of_its_own_and_no_row_is_about_another() -> None:
    listed = [name for row in rows(section("Labels")) for name in names(row[0])]
    assert len(listed) == len(set(listed))
    assert set(listed) == made() | NOT_MADE


# Verdicts and differences


def test_every_row_has_a_verdict() -> None:
    differences = {one.id for one in (*ACCEPTED, *ACCEPTED_IN_CDI)}
    for row in rows(NVIDIA):
        is_head = set("".join(row)) <= {"-"} or "here" in row
        assert is_head or VERDICTS & set(row) or names(row[0]) & differences, row


@pytest.mark.parametrize(
    ("title", "accepted"),
    [("Differences", ACCEPTED), ("Differences of CDI specifications", ACCEPTED_IN_CDI)],
)
def test_the_accepted_differences_are_those_that_tests_accept(
    title: str, accepted: Iterable[Difference]
) -> None:
    listed = re.findall(r"^\| `([^`]+)` \|", section(title), re.MULTILINE)
    assert listed == [one.id for one in accepted]
