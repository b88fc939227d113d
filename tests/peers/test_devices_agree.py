"""NVIDIA's device plugin 0.19.0 and ours advertise the same devices on every node.

What may differ is listed in agreement/differences.py and nowhere else; test_differences_of_*.py
show it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from . import facts
from .agreement.configs import GPU, write
from .agreement.differences import MPS_LIMITS, MPS_PRE_START, MPS_PRIVILEGED_SOCKET, MPS_SHM
from .agreement.requests import all_agree
from .conftest import MakeNode, ShareGpus, StartPair

SHARED = "nvidia.com/gpu.shared"
WITH_MPS = (MPS_LIMITS, MPS_PRE_START, MPS_PRIVILEGED_SOCKET, MPS_SHM)


@pytest.mark.parametrize("profile", facts.CARDS)
def test_every_node_is_advertised_alike(
    make_node: MakeNode, start_pair: StartPair, profile: str
) -> None:
    pair = start_pair(make_node(profile), "--pass-device-specs")
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize("strategy", ["single", "mixed"])
@pytest.mark.parametrize("profile", ["t4x2", "mixed"])
def test_a_mig_strategy_changes_nothing_if_no_gpu_is_in_mig_mode(
    make_node: MakeNode, start_pair: StartPair, profile: str, strategy: str
) -> None:
    pair = start_pair(make_node(profile), f"--mig-strategy={strategy}")
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize(
    ("profile", "strategy", "resources"),
    [
        ("a100x2-mig-single", "single", {GPU}),
        ("a100x2-mig-single", "mixed", {"nvidia.com/mig-1g.5gb"}),
        (
            "a100x2-mig-mixed",
            "mixed",
            {GPU, *(f"nvidia.com/mig-{kind}" for kind in ("1g.5gb", "2g.10gb", "3g.20gb"))},
        ),
    ],
)
def test_mig_devices_are_advertised_alike(
    make_node: MakeNode,
    start_pair: StartPair,
    profile: str,
    strategy: str,
    resources: set[str],
) -> None:
    pair = start_pair(make_node(profile), f"--mig-strategy={strategy}", "--pass-device-specs")
    pair.wait_for(*resources)
    all_agree(pair)


@pytest.mark.parametrize("rename", [False, True], ids=["", "renamed"])
@pytest.mark.parametrize("one_at_a_time", [False, True], ids=["", "one at a time"])
@pytest.mark.parametrize(("profile", "replicas"), [("t4x2", 2), ("a10x4", 10), ("mixed", 3)])
def test_time_sliced_gpus_are_advertised_alike(
    make_node: MakeNode,
    start_pair: StartPair,
    scratch: Path,
    profile: str,
    replicas: int,
    rename: bool,
    one_at_a_time: bool,
) -> None:
    sharing = {
        "renameByDefault": rename,
        "failRequestsGreaterThanOne": one_at_a_time,
        "resources": [{"name": GPU, "replicas": replicas}],
    }
    config = write(scratch, {"sharing": {"timeSlicing": sharing}})
    pair = start_pair(make_node(profile), f"--config-file={config}", "--pass-device-specs")
    pair.wait_for(SHARED if rename else GPU)
    all_agree(pair)


def test_replicas_of_some_resources_do_not_change_the_others(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    shared = [
        {"name": "mig-1g.5gb", "replicas": 3},  # `nvidia.com/` is understood
        {"name": "nvidia.com/mig-2g.10gb", "replicas": 2},
        {"name": "nvidia.com/mig-7g.40gb", "replicas": 2},  # not on this node
    ]
    config = write(
        scratch,
        {
            "flags": {"migStrategy": "mixed"},
            "sharing": {"timeSlicing": {"renameByDefault": True, "resources": shared}},
        },
    )
    pair = start_pair(make_node("a100x2-mig-mixed"), f"--config-file={config}")
    mig = "nvidia.com/mig-"
    pair.wait_for(GPU, f"{mig}1g.5gb.shared", f"{mig}2g.10gb.shared", f"{mig}3g.20gb")
    all_agree(pair)


@pytest.mark.parametrize("rename", [False, True], ids=["", "renamed"])
@pytest.mark.parametrize(("profile", "replicas"), [("t4x2", 4), ("a100-40x8", 10)])
def test_gpus_shared_by_mps_are_advertised_alike(
    make_node: MakeNode,
    start_pair: StartPair,
    share_gpus: ShareGpus,
    scratch: Path,
    profile: str,
    replicas: int,
    rename: bool,
) -> None:
    sharing = {"renameByDefault": rename, "resources": [{"name": GPU, "replicas": replicas}]}
    config = write(scratch, {"sharing": {"mps": sharing}})
    node = make_node(profile)
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(SHARED if rename else GPU)
    all_agree(pair, WITH_MPS)
