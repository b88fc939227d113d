"""The CDI specifications that our plugin writes and those of NVIDIA's describe a node alike.

Both programs run with the same flags. What may differ is listed in agreement/differences.py, and
each of these differences is shown here.
"""

from __future__ import annotations

import subprocess

import pytest

from gpuslice_sim.driver_root import pci_address
from gpuslice_sim.node import SimNode

from .agreement import differences as d
from .agreement.differences import shows
from .agreement.full_node import furnish
from .agreement.pair import Pair, Refusal
from .agreement.specifications import Spec, read, specifications_agree
from .build import Peers
from .conftest import MakeNode, StartPair

GPU = "nvidia.com/gpu"
EXTRAS = ("--gds-enabled", "--mofed-enabled", "--gdrcopy-enabled", "--imex-channel-ids=0")
CLASSES = {"gpu", "imex-channel", "gdrcopy", "gds", "mofed"}
# What a node with everything in place shows.
FURNISHED = (d.CDI_GROUPS, d.CDI_BY_PATH, d.CDI_ONE_HOOK, d.CDI_IMEX_NUMBERS)


def test_every_accepted_difference_of_specifications_is_shown() -> None:
    shown = d.shown_by(globals())
    assert sorted(one.id for one in shown) == sorted(one.id for one in d.ACCEPTED_IN_CDI)


# What agrees


@pytest.mark.parametrize(
    ("profile", "strategy"),
    [
        ("t4x2", "none"),
        ("mixed", "none"),
        ("h100x8", "none"),
        ("a100x2-mig-single", "single"),
        ("a100x2-mig-mixed", "mixed"),
    ],
)
def test_devices_env_mounts_and_hooks_agree(
    make_node: MakeNode, start_pair: StartPair, profile: str, strategy: str
) -> None:
    pair = writing(start_pair, make_node(profile), f"--mig-strategy={strategy}")
    specifications_agree(pair, {"gpu"})


@pytest.mark.parametrize("driver", [535, 570, 590, 615])
def test_everything_that_can_lie_around_a_driver_is_found_alike(
    make_node: MakeNode, start_pair: StartPair, driver: int
) -> None:
    node = make_node("a100x2-mig-mixed", driver=driver)
    furnish(node)
    flag = "--cdi-feature-flags=enable-explicit-driver-libraries"
    pair = writing(start_pair, node, "--mig-strategy=mixed", *EXTRAS, flag)
    specifications_agree(pair, CLASSES, FURNISHED)


def test_devices_are_named_by_index_alike(make_node: MakeNode, start_pair: StartPair) -> None:
    pair = writing(
        start_pair,
        make_node("a100x2-mig-mixed"),
        "--mig-strategy=mixed",
        "--device-id-strategy=index",
    )
    specifications_agree(pair, {"gpu"})
    assert set(by_name(our_gpus(pair))) == {"0:0", "0:1", "0:2", "0:3", "1"}


@pytest.mark.parametrize("path", ["/usr/bin/nvidia-cdi-hook", "/opt/bin/nvidia-ctk"])
def test_the_hook_program_is_called_alike(
    make_node: MakeNode, start_pair: StartPair, path: str
) -> None:
    pair = writing(start_pair, make_node("t4x2"), f"--nvidia-cdi-hook-path={path}")
    specifications_agree(pair, {"gpu"})


@pytest.mark.parametrize("ids", ["uuid", "index"])
def test_nvidias_tool_finds_every_device_that_our_answers_name(
    make_node: MakeNode, start_pair: StartPair, peers: Peers, ids: str
) -> None:
    node = make_node("a100x2-mig-mixed")
    furnish(node)
    pair = writing(start_pair, node, "--mig-strategy=mixed", *EXTRAS, f"--device-id-strategy={ids}")
    pair.wait_for(GPU, *(f"nvidia.com/mig-{size}" for size in ("1g.5gb", "2g.10gb", "3g.20gb")))
    done = subprocess.run(
        [peers.ctk, "cdi", "list", f"--spec-dir={pair.ours.cdi_directory}"],
        capture_output=True,
        text=True,
        check=True,
        timeout=180,
    )
    assert set(done.stdout.split()) == named_in_our_answers(pair)


# What differs


@shows(d.CDI_OFFERED)
def test_a_gpu_in_mig_mode_that_is_offered_whole_is_described_whole_by_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100x2-mig-mixed")
    pair = writing(start_pair, node, "--mig-strategy=none")
    cut, whole = node.gpu(0), node.gpu(1)
    for side in (pair.ours, pair.theirs):
        assert set(side.health(GPU)) == {cut.uuid, whole.uuid}
    ours, theirs = by_name(our_gpus(pair)), by_name(their_gpus(pair))
    assert set(ours) == {cut.uuid, whole.uuid}
    assert set(theirs) == {*(mig.uuid for mig in cut.mig), whole.uuid}
    assert ours[whole.uuid] == theirs[whole.uuid]
    [entry] = ours[cut.uuid]["deviceNodes"]
    assert entry["path"] == f"/dev/nvidia{cut.minor}"


@shows(d.CDI_HOST_PATH)
def test_a_path_that_is_the_same_on_the_host_is_stated_once_by_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    pair = writing(start_pair, node, driver_root="/")
    ours, theirs = our_gpus(pair), their_gpus(pair)
    assert (ours["cdiVersion"], theirs["cdiVersion"]) == ("0.3.0", "0.5.0")
    for entry in nodes_of(theirs):
        assert entry["hostPath"] == entry["path"]
    assert not any("hostPath" in entry for entry in nodes_of(ours))
    specifications_agree(pair, {"gpu"}, (d.CDI_HOST_PATH,))


@shows(d.CDI_GROUPS, d.CDI_BY_PATH, d.CDI_ONE_HOOK)
def test_nodes_of_a_display_can_be_found_and_opened_with_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    furnish(node)
    pair = writing(start_pair, node)
    ours, theirs = our_gpus(pair), their_gpus(pair)
    uuid, address = node.gpu(0).uuid, pci_address(node.gpu(0).pci)

    assert by_name(ours)[uuid]["additionalGids"] == [44]
    assert "additionalGids" not in by_name(theirs)[uuid]
    assert (ours["cdiVersion"], theirs["cdiVersion"]) == ("0.7.0", "0.5.0")

    link = f"/dev/dri/by-path/pci-{address}-card"
    assert f"../card1::{link}" in links_of(by_name(ours)[uuid])
    assert f"../card1::{node.root}{link}" in links_of(by_name(theirs)[uuid])

    def hooks(spec: Spec) -> list[str]:
        return [hook["args"][2] for hook in spec["containerEdits"]["hooks"]]

    assert hooks(theirs) == ["create-symlinks", *hooks(ours)]


def test_without_groups_nothing_is_left_of_that_difference(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    furnish(node)
    pair = writing(start_pair, node, "--cdi-feature-flags=no-additional-gids-for-device-nodes")
    specifications_agree(pair, {"gpu"}, (d.CDI_BY_PATH, d.CDI_ONE_HOOK))


@shows(d.CDI_IMEX_NUMBERS)
def test_imex_channels_have_their_numbers_with_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    furnish(node)
    pair = writing(start_pair, node, "--imex-channel-ids=0")
    path = "/dev/nvidia-caps-imex-channels/channel0"
    same = {"path": path, "hostPath": f"{node.root}{path}"}
    assert nodes_of(read(pair.theirs.cdi_directory)["imex-channel"]) == [same]
    assert nodes_of(read(pair.ours.cdi_directory)["imex-channel"]) == [
        {**same, "major": 234, "fileMode": 0o666, "permissions": "rwm"}
    ]


# Helpers


def writing(
    start_pair: StartPair, node: SimNode, *flags: str, driver_root: str | None = None
) -> Pair:
    """Both plugins, when their specifications are there: they register later."""
    pair = start_pair(
        node,
        "--device-list-strategy=cdi-cri",
        f"--driver-root={driver_root or node.root}",
        *flags,
    )
    pair.wait_for(GPU)
    return pair


def our_gpus(pair: Pair) -> Spec:
    return read(pair.ours.cdi_directory)["gpu"]


def their_gpus(pair: Pair) -> Spec:
    return read(pair.theirs.cdi_directory)["gpu"]


def by_name(spec: Spec) -> dict[str, Spec]:
    return {device["name"]: device["containerEdits"] for device in spec["devices"]}


def nodes_of(spec: Spec) -> list[Spec]:
    edits = [*by_name(spec).values(), spec.get("containerEdits", {})]
    return [node for edit in edits for node in edit.get("deviceNodes", [])]


def links_of(edits: Spec) -> list[str]:
    return [word for hook in edits["hooks"] for word in hook["args"] if "::" in word]


def named_in_our_answers(pair: Pair) -> set[str]:
    found = set()
    for resource in pair.resources:
        answers = pair.ours.allocate(resource, [[i] for i in pair.ours.health(resource)])
        assert not isinstance(answers, Refusal), answers
        found |= {device.name for answer in answers for device in answer.cdi_devices}
    return found
