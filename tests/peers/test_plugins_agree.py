"""NVIDIA's device plugin 0.19.0 and ours, on one node with the same settings, answer alike.

What may differ is listed in agreement/differences.py and nowhere else; test_plugins_differ.py
shows it.
"""

from __future__ import annotations

import json
import random
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuslice.codes import Code
from gpuslice_sim.node import SimNode, create
from tests.surroundings import SCRATCH

from . import facts
from .agreement.compare import (
    Plain,
    allocations_agree,
    lists_agree,
    preferences_agree,
    registrations_agree,
)
from .agreement.differences import MPS_LIMITS, MPS_PRE_START, Difference
from .agreement.pair import OURS, Pair, Refusal, running, started
from .build import Peers
from .conftest import MakeNode, ShareGpus, StartPair
from .test_cdi_agrees import furnish

GPU = "nvidia.com/gpu"
SHARED = "nvidia.com/gpu.shared"
CDI = "k8s.device-plugin.nvidia.com"
DEVICE_LIST = "/var/run/nvidia-container-devices"
CONTROL = ("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset")
WITH_MPS = (MPS_LIMITS, MPS_PRE_START)


# Nodes


@pytest.mark.parametrize("profile", facts.CARDS)
def test_every_node_is_offered_alike(
    make_node: MakeNode, start_pair: StartPair, profile: str
) -> None:
    pair = start_pair(make_node(profile), "--pass-device-specs")
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize("strategy", ["single", "mixed"])
@pytest.mark.parametrize("profile", ["t4x2", "mixed"])
def test_a_strategy_for_mig_changes_nothing_where_no_gpu_is_in_mig_mode(
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
def test_mig_devices_are_offered_alike(
    make_node: MakeNode,
    start_pair: StartPair,
    profile: str,
    strategy: str,
    resources: set[str],
) -> None:
    pair = start_pair(make_node(profile), f"--mig-strategy={strategy}", "--pass-device-specs")
    pair.wait_for(*resources)
    all_agree(pair)


@pytest.mark.parametrize("profile", ["a100x2-mig-mixed", "half"])
def test_gpus_that_are_not_alike_are_no_single_strategy_for_either(
    make_node: MakeNode, peers: Peers, scratch: Path, profile: str
) -> None:
    node = make_node("a100x2-mig-mixed")
    if profile == "half":
        node.faults.mig(1, ["3g.20gb", "3g.20gb"])
    both_refuse(peers, node, scratch, ["--mig-strategy=single"])


# Settings: one way to say a thing is as good as another, and flags win over variables over the file


@pytest.mark.parametrize(
    ("flags", "env", "file"),
    [
        (["--device-id-strategy=index"], {}, {}),
        (["--device-id-strategy", "index"], {"DEVICE_ID_STRATEGY": "uuid"}, {}),
        ([], {"DEVICE_ID_STRATEGY": "index"}, {"deviceIDStrategy": "uuid"}),
        ([], {}, {"deviceIDStrategy": "index"}),
        (["-pass-device-specs"], {"DEVICE_LIST_STRATEGY": "volume-mounts"}, {}),
        (["--pass-device-specs=false"], {"PASS_DEVICE_SPECS": "true"}, {}),
        ([], {"PASS_DEVICE_SPECS": "true"}, {"passDeviceSpecs": False}),
        ([], {}, {"passDeviceSpecs": True, "deviceListStrategy": ["envvar", "volume-mounts"]}),
        (["--device-list-strategy=envvar,volume-mounts"], {}, {"deviceListStrategy": "cdi-cri"}),
        (["--device-list-strategy=envvar", "--device-list-strategy=cdi-cri"], {}, {}),
        ([], {"DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri"}, {}),
        (["--cdi-annotation-prefix=example.com/"], {}, {"deviceListStrategy": "cdi-annotations"}),
        ([], {}, {"deviceListStrategy": ["cdi-annotations"], "cdiAnnotationPrefix": "a.b/"}),
        (["--nvidia-dev-root=/somewhere"], {"PASS_DEVICE_SPECS": "1"}, {}),
        (["--nvidia-driver-root=/run/nvidia/driver", "--pass-device-specs"], {}, {}),
        ([], {"NVIDIA_DRIVER_ROOT": "/a", "NVIDIA_DEV_ROOT": "/b", "PASS_DEVICE_SPECS": "t"}, {}),
    ],
)
def test_flags_variables_and_file_count_alike(
    make_node: MakeNode,
    start_pair: StartPair,
    scratch: Path,
    flags: list[str],
    env: dict[str, str],
    file: dict[str, object],
) -> None:
    config = write(scratch, {"version": "v1", "flags": {"plugin": file}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}", *flags, env=env)
    pair.by_index = True
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize(
    "text",
    ["", "---\n", "{}", '{\n\t"version": "v1"\n}', "version: ''", "sharing:\n", "version: v1\n"],
)
def test_a_file_that_says_nothing_is_none(
    make_node: MakeNode, start_pair: StartPair, scratch: Path, text: str
) -> None:
    config = scratch / "config.yaml"
    config.write_text(text)
    pair = start_pair(make_node("t4x2"), env={"CONFIG_FILE": str(config)})
    pair.wait_for(GPU)
    registrations_agree(pair)
    lists_agree(pair)
    allocations_agree(pair, GPU, [pair.node.gpu(0).uuid])


def test_neither_registers_without_a_kubelet_socket(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("t4x2"), "--kubelet-socket=")
    pair.theirs.process.wait_for_output("Ignoring the following XIDs")  # after it would have
    pair.ours.process.wait_for_code(Code.ADVERTISED, "resource=nvidia.com/gpu", times=2)
    registrations_agree(pair)


@pytest.mark.parametrize("way", ["nvml", "tegra"])
def test_the_way_gpus_are_found_can_be_prescribed(
    make_node: MakeNode, start_pair: StartPair, way: str
) -> None:
    pair = start_pair(make_node("t4x2"), f"--device-discovery-strategy={way}")
    pair.wait_for(GPU)
    all_agree(pair)


@pytest.mark.parametrize("switch", ["gds", "mofed", "gdrcopy"])
@pytest.mark.parametrize("strategies", ["envvar", "cdi-annotations,cdi-cri"])
def test_extra_modes_reach_containers_alike(
    make_node: MakeNode, start_pair: StartPair, switch: str, strategies: str
) -> None:
    node = make_node("t4x2")
    furnish(node)
    pair = start_pair(
        node,
        f"--{switch}-enabled",
        f"--device-list-strategy={strategies}",
        f"--driver-root={node.root}",
    )
    pair.wait_for(GPU)
    [answer] = agreed(pair, GPU, [node.gpu(1).uuid])
    assert answer.env[f"NVIDIA_{switch.upper()}"] == "enabled"
    if strategies != "envvar":
        assert answer.cdi == [f"{CDI}/gpu={node.gpu(1).uuid}", f"{CDI}/{switch}=all"]


@pytest.mark.parametrize("strategies", ["envvar", "volume-mounts", "envvar,cdi-cri", "cdi-cri"])
@pytest.mark.parametrize("present", [True, False], ids=["present", "absent"])
def test_imex_channels_reach_containers_alike(
    make_node: MakeNode, start_pair: StartPair, strategies: str, present: bool
) -> None:
    node = make_node("t4x2")
    if present:
        furnish(node)
    pair = start_pair(
        node,
        "--imex-channel-ids=0",
        "--pass-device-specs",
        f"--device-list-strategy={strategies}",
        f"--driver-root={node.root}",
    )
    pair.wait_for(GPU)
    all_agree(pair)


# What containers receive, word for word


@dataclass(frozen=True)
class Example:
    flags: list[str]
    ids: list[str]
    env: dict[str, str] = field(default_factory=dict)
    mounts: list[tuple[str, str]] = field(default_factory=list)
    nodes: list[tuple[str, str]] = field(default_factory=list)
    annotations: list[tuple[str, str]] = field(default_factory=list)
    cdi: list[str] = field(default_factory=list)
    sharing: dict[str, object] = field(default_factory=dict)
    resource: str = GPU


def four(rename: bool = False) -> dict[str, object]:
    return {"renameByDefault": rename, "resources": [{"name": GPU, "replicas": 4}]}


EXAMPLES = {
    "a GPU": Example([], ["{gpu}"], {"NVIDIA_VISIBLE_DEVICES": "{gpu}"}),
    "two replicas of a GPU": Example(
        [],
        ["{gpu}::3", "{gpu}::1"],
        {"NVIDIA_VISIBLE_DEVICES": "{gpu}"},
        sharing={"timeSlicing": four()},
    ),
    "an index and device nodes of another root": Example(
        ["--device-id-strategy=index", "--pass-device-specs", "--dev-root=/run/nvidia/driver"],
        ["{gpu}"],
        {"NVIDIA_VISIBLE_DEVICES": "0"},
        nodes=sorted((f"/run/nvidia/driver{path}", path) for path in (*CONTROL, "/dev/nvidia0")),
    ),
    "mounts and an IMEX channel": Example(
        ["--device-list-strategy=volume-mounts", "--imex-channel-ids=0"],
        ["{gpu}"],
        {"NVIDIA_VISIBLE_DEVICES": DEVICE_LIST},
        mounts=[
            ("/dev/null", f"{DEVICE_LIST}/{{gpu}}"),
            ("/dev/null", f"{DEVICE_LIST}/imex/0"),
        ],
    ),
    "an annotation and GPUDirect Storage": Example(
        ["--device-list-strategy=cdi-annotations", "--gds-enabled"],
        ["{gpu}"],
        {"NVIDIA_GDS": "enabled"},
        annotations=[
            ("cdi.k8s.io/nvidia-device-plugin_", f"{CDI}/gpu={{gpu}},{CDI}/gds=all"),
        ],
    ),
    "CDI and a replica by MPS": Example(
        ["--device-list-strategy=cdi-cri", "--mps-root=/run/nvidia/mps"],
        ["{gpu}::0"],
        {"CUDA_MPS_PIPE_DIRECTORY": f"/mps/{SHARED}/pipe"},
        mounts=[
            (f"/run/nvidia/mps/{SHARED}/pipe", f"/mps/{SHARED}/pipe"),
            ("/run/nvidia/mps/shm", "/dev/shm"),
        ],
        cdi=[f"{CDI}/gpu={{gpu}}"],
        sharing={"mps": four(rename=True)},
        resource=SHARED,
    ),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_worked_examples_are_answered_as_written(
    make_node: MakeNode,
    start_pair: StartPair,
    share_gpus: ShareGpus,
    scratch: Path,
    name: str,
) -> None:
    example = EXAMPLES[name]
    node = make_node("t4x2")
    furnish(node)
    config = write(scratch, {"sharing": example.sharing})
    binds = {}
    if "mps" in example.sharing:
        binds = {"/mps": share_gpus(node, config)[1]}
    pair = start_pair(node, f"--config-file={config}", *example.flags, binds=binds)
    pair.wait_for(example.resource)
    uuid = node.gpu(0).uuid
    accepted = WITH_MPS if binds else ()
    ids = [text.format(gpu=uuid) for text in example.ids]
    [answer] = agreed(pair, example.resource, ids, accepted=accepted)
    assert answer.env == {key: text.format(gpu=uuid) for key, text in example.env.items()}
    assert answer.mounts == [(a, b.format(gpu=uuid), False) for a, b in example.mounts]
    assert answer.nodes == [(host, inside, "rw") for host, inside in example.nodes]
    assert answer.annotations == [(k, v.format(gpu=uuid)) for k, v in example.annotations]
    assert answer.cdi == [text.format(gpu=uuid) for text in example.cdi]


# Replicas


@pytest.mark.parametrize("rename", [False, True], ids=["", "renamed"])
@pytest.mark.parametrize("one_at_a_time", [False, True], ids=["", "one at a time"])
@pytest.mark.parametrize(("profile", "replicas"), [("t4x2", 2), ("a10x4", 10), ("mixed", 3)])
def test_time_sliced_gpus_are_offered_alike(
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


def test_replicas_of_some_resources_leave_the_others_alone(
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
def test_gpus_shared_by_mps_are_offered_alike(
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


# Anything at all


MIG_LAYOUTS: tuple[list[str], ...] = (
    [],
    ["7g.40gb"],
    ["4g.20gb", "3g.20gb"],
    ["3g.20gb", "2g.10gb", "1g.5gb", "1g.5gb"],
    ["2g.10gb", "2g.10gb", "2g.10gb"],
    ["1g.5gb"] * 3,
    ["1g.5gb"] * 7,
)


@dataclass(frozen=True)
class Setup:
    layouts: tuple[list[str], ...]
    strategy: str
    replicas: dict[str, int]
    rename: bool
    one_at_a_time: bool
    flags: tuple[str, ...]
    seed: int

    def config(self) -> dict[str, object]:
        if not self.replicas:
            return {}
        entries = [{"name": name, "replicas": n} for name, n in self.replicas.items()]
        sharing = {
            "renameByDefault": self.rename,
            "failRequestsGreaterThanOne": self.one_at_a_time,
            "resources": entries,
        }
        return {"sharing": {"timeSlicing": sharing}}

    def resources(self) -> set[str]:
        """Reckoned from the rules in NVIDIA's documentation."""
        names = set()
        for layout in self.layouts:
            if layout and self.strategy == "mixed":
                names |= {f"nvidia.com/mig-{kind}" for kind in layout}
            else:
                names.add(GPU)
        return {f"{n}.shared" if self.rename and n in self.replicas else n for n in names}


SHAREABLE = (GPU, *(f"nvidia.com/mig-{kind}" for kind in ("1g.5gb", "2g.10gb", "3g.20gb")))


@st.composite
def setups(draw: st.DrawFn) -> Setup:
    strategy = draw(st.sampled_from(["none", "single", "mixed", "mixed"]))
    if strategy == "single":
        layout = draw(st.sampled_from([kinds for kinds in MIG_LAYOUTS if len(set(kinds)) < 2]))
        layouts = (layout, layout)
    else:
        layouts = (draw(st.sampled_from(MIG_LAYOUTS)), draw(st.sampled_from(MIG_LAYOUTS)))
    ways = st.sets(
        st.sampled_from(["envvar", "volume-mounts", "cdi-annotations", "cdi-cri"]), min_size=1
    )
    return Setup(
        layouts,
        strategy,
        draw(st.dictionaries(st.sampled_from(SHAREABLE), st.integers(2, 9))),
        draw(st.booleans()),
        draw(st.booleans()),
        (
            f"--mig-strategy={strategy}",
            f"--device-list-strategy={','.join(sorted(draw(ways)))}",
            f"--device-id-strategy={draw(st.sampled_from(['uuid', 'uuid', 'index']))}",
            f"--pass-device-specs={draw(st.sampled_from(['true', 'false']))}",
        ),
        draw(st.integers(0, 1000)),
    )


@pytest.fixture(scope="module")
def ground(peers: Peers, root_user: None) -> Iterator[tuple[Peers, SimNode, Path]]:
    with tempfile.TemporaryDirectory(prefix="peers-", dir=SCRATCH) as scratch:
        yield peers, create(Path(scratch) / "node", "a100x2-mig-mixed", driver=570), Path(scratch)


@settings(
    derandomize=True,
    database=None,
    max_examples=40,
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
@given(setup=setups())
def test_any_node_with_any_settings_is_offered_alike(
    ground: tuple[Peers, SimNode, Path], setup: Setup
) -> None:
    peers, node, scratch = ground
    for gpu, layout in enumerate(setup.layouts):
        node.faults.mig(gpu, layout)
    flags = [
        *setup.flags,
        f"--config-file={write(scratch, setup.config())}",
        f"--driver-root={node.root}",
    ]
    with started(peers.device_plugin, node, scratch, flags, {}, {}) as pair:
        pair.by_index = "--device-id-strategy=index" in flags
        pair.wait_for(*setup.resources())
        all_agree(pair, seed=setup.seed)


# What neither accepts


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (["--mig-strategy=some"], "mig-strategy"),
        (["--mig-strategy="], "mig-strategy"),
        (["--device-list-strategy=some"], "device-list-strategy"),
        (["--device-list-strategy=envvar,some"], "device-list-strategy"),
        (["--device-list-strategy="], "device-list-strategy"),
        (["--device-id-strategy=name"], "device-id-strategy"),
        (["--device-discovery-strategy=guess"], "device-discovery-strategy"),
        (["--imex-channel-ids=1"], "imex-channel-ids"),
        (["--imex-channel-ids=0,0"], "imex-channel-ids"),
        (["--imex-channel-ids=x"], "imex-channel-ids"),
        (["--imex-channel-ids=0", "--imex-required"], "channel 0 does not exist"),
        (["--pass-device-specs=maybe"], "pass-device-specs"),
        (["--no-such-flag"], "flag provided but not defined: -no-such-flag"),
        (["--config-file=/nonexistent.yaml"], "/nonexistent.yaml"),
    ],
)
def test_bad_flags_are_refused_by_both(
    make_node: MakeNode, peers: Peers, scratch: Path, flags: list[str], named: str
) -> None:
    assert named in both_refuse(peers, make_node("t4x2"), scratch, flags)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("MIG_STRATEGY", "some"),
        ("DEVICE_LIST_STRATEGY", "envvar,some"),
        ("PASS_DEVICE_SPECS", "yes"),
        ("FAIL_ON_INIT_ERROR", "maybe"),
        ("CONFIG_FILE", "/nonexistent.yaml"),
    ],
)
def test_bad_variables_are_refused_by_both(
    make_node: MakeNode, peers: Peers, scratch: Path, variable: str, value: str
) -> None:
    words = both_refuse(peers, make_node("t4x2"), scratch, [], {variable: value})
    assert value.rpartition(",")[2] in words


def time_slicing(**entry: object) -> dict[str, object]:
    return {"sharing": {"timeSlicing": {"resources": [{"name": "gpu", "replicas": 2} | entry]}}}


@pytest.mark.parametrize(
    ("config", "named"),
    [
        ("flags: [", "not valid YAML"),
        ("- a", "it is a list; use a section with these keys"),
        ({"version": "v2"}, "unknown version"),
        ({"flags": "none"}, "flags"),
        ({"flags": {"migStrategy": "some"}}, "flags.migStrategy"),
        ({"flags": {"plugin": {"deviceListStrategy": "some"}}}, "deviceListStrategy"),
        ({"flags": {"plugin": {"deviceListStrategy": ["envvar", "x"]}}}, "deviceListStrategy"),
        ({"flags": {"plugin": {"deviceIDStrategy": "x"}}}, "deviceIDStrategy"),
        ({"flags": {"plugin": {"passDeviceSpecs": "true"}}}, "passDeviceSpecs"),
        ({"flags": {"gfd": {"sleepInterval": "soon"}}}, "flags.gfd.sleepInterval"),
        ({"imex": {"channelIDs": [1]}}, "imex"),
        ({"resources": {"gpus": [{"name": "gpu"}]}}, "pattern"),
        ({"resources": {"gpus": [{"pattern": "*"}]}}, "name"),
        ({"sharing": {"timeSlicing": {"renameByDefault": True}}}, "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": []}}}, "no resources specified"),
        ({"sharing": {"timeSlicing": {"resources": [{"name": "gpu"}]}}}, "replicas"),
        ({"sharing": {"timeSlicing": {"resources": [{"replicas": 2}]}}}, "name"),
        (time_slicing(replicas=0), "number of replicas must be >="),
        (time_slicing(replicas=-3), "number of replicas must be >="),
        (time_slicing(replicas="four"), "replicas"),
        (time_slicing(replicas="2"), "replicas"),
        (time_slicing(name="nvidia.com/GPU"), "nvidia.com/GPU"),
        (time_slicing(name="nvidia.com/g p u"), "nvidia.com/g p u"),
        (time_slicing(name="example.com/gpu"), "example.com/gpu"),
        (time_slicing(name="a" * 60), "63"),
        (time_slicing(rename="a b"), "rename"),
        (time_slicing(devices=0), "devices"),
        (time_slicing(devices=-1), "devices"),
        (time_slicing(devices="some"), "devices"),
        (time_slicing(devices=["x"]), "devices"),
        ({"sharing": {"mps": four()}}, "using MPS requires --mps-root"),
        (
            {"flags": {"migStrategy": "mixed", "mpsRoot": "/mps"}, "sharing": {"mps": four()}},
            "mixed",
        ),
    ],
)
def test_bad_files_are_refused_by_both(
    make_node: MakeNode,
    peers: Peers,
    scratch: Path,
    config: str | dict[str, object],
    named: str,
) -> None:
    flags = [f"--config-file={write(scratch, config)}"]
    assert named in both_refuse(peers, make_node("t4x2"), scratch, flags)


def test_without_a_driver_both_give_up(make_node: MakeNode, peers: Peers, scratch: Path) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    both_refuse(peers, node, scratch, [])


def test_without_a_driver_both_wait_if_they_are_told_to(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    node.faults.nvml_init("DRIVER_NOT_LOADED")
    pair = start_pair(node, "--fail-on-init-error=false")
    pair.ours.process.wait_for_code(Code.WAITING_FOR_GPUS)
    pair.theirs.process.wait_for_output("No devices found|If this is a GPU node")
    registrations_agree(pair)


# How they are asked


def all_agree(pair: Pair, accepted: Collection[Difference] = (), *, seed: int = 0) -> None:
    registrations_agree(pair, accepted)
    lists_agree(pair)
    for resource in sorted(pair.resources):
        ids = sorted(pair.ours.kubelet.devices(resource))
        for containers in requests(ids, seed):
            allocations_agree(pair, resource, *containers, accepted=accepted)
        for available, must_include, size in wishes(pair, ids, seed):
            preferences_agree(pair, resource, available, must_include, size)
    registrations_agree(pair, accepted)


def requests(ids: Sequence[str], seed: int) -> list[tuple[Sequence[str], ...]]:
    """For one container and for several in one call, of known devices and of unknown ones."""
    draw = random.Random(seed)
    some = draw.sample(ids, min(6, len(ids)))
    return [
        *(([one],) for one in ids[:16]),
        *((two,) for two in combinations(some, 2)),
        (ids[:64],),
        (some,),
        tuple([one] for one in some),
        (["GPU-0"],),
        ([ids[0], "GPU-0"],),
        ([ids[0]], [f"{ids[-1]}::99"]),
    ]


def wishes(pair: Pair, ids: Sequence[str], seed: int) -> list[tuple[list[str], list[str], int]]:
    """Only what NVIDIA's answers in time and without dying: for the rest see SURE_ADVICE."""
    draw = random.Random(seed)
    whole = {gpu.uuid for gpu in pair.node.gpus()}.issuperset(ids)
    result = []
    for _ in range(16):
        available = draw.sample(ids, draw.randint(1, len(ids)))
        total = len(available)
        sizes = [n for n in range(1, total + 1) if not whole or cheap(total, n)]
        size = draw.choice(sizes)
        result.append((available, draw.sample(available, draw.randint(0, size)), size))
    return result


def cheap(available: int, size: int) -> bool:
    """Whether there are few ways to part the GPUs into groups of that size."""
    return available <= 8 or (available % size == 0 and available // size <= 2)


def agreed(
    pair: Pair, resource: str, ids: Sequence[str], accepted: Collection[Difference] = ()
) -> list[Plain]:
    answer = allocations_agree(pair, resource, ids, accepted=accepted)
    assert not isinstance(answer, Refusal), answer
    return answer


def both_refuse(
    peers: Peers,
    node: SimNode,
    scratch: Path,
    flags: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> str:
    """Both end by themselves and not well; returns our last words."""
    with (
        running(peers.device_plugin, node, scratch / "t", flags, env or {}, {}) as theirs,
        running(OURS, node, scratch / "o", flags, env or {}, {}) as ours,
    ):
        assert theirs.wait() != 0
        assert ours.wait() in (1, 2)
        assert "Traceback" not in ours.output()
        return ours.output()


def write(scratch: Path, config: object) -> Path:
    """JSON is YAML."""
    path = scratch / "config.yaml"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path
