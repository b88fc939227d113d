"""Every accepted difference from NVIDIA's device plugin 0.19.0 is one: both sides are shown."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.node import SimNode

from . import facts, test_plugins_agree
from .agreement import differences as d
from .agreement.compare import allocations_agree, registrations_agree
from .agreement.differences import shows
from .agreement.links import closeness
from .agreement.pair import OURS, ListeningKubelet, Refusal, Side, running
from .build import Peers
from .conftest import MakeNode, ShareGpus, StartPair

GPU = "nvidia.com/gpu"
PATIENCE = 90.0


def test_every_accepted_difference_is_shown() -> None:
    shown = d.shown_by(globals()) | d.shown_by(vars(test_plugins_agree))
    assert sorted(one.id for one in shown) == sorted(one.id for one in d.ACCEPTED)
    assert len({one.id for one in d.ACCEPTED}) == len(d.ACCEPTED)


# Answers


@shows(d.ANNOTATION_KEY)
def test_equal_requests_get_equal_annotations_from_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("t4x2")
    pair = start_pair(node, "--device-list-strategy=cdi-annotations", f"--driver-root={node.root}")
    pair.wait_for(GPU)
    asked = [node.gpu(0).uuid]

    def keys(side: Side) -> set[str]:
        return {key for _ in range(3) for key in answer(side, asked).annotations}

    assert len(keys(pair.theirs)) == 3
    assert len(keys(pair.ours)) == 1


@shows(d.ORDER)
def test_indices_come_in_the_order_of_the_request_from_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("a100-40x8"), "--device-id-strategy=index")
    pair.wait_for(GPU)
    order = (5, 1, 7, 0, 3)
    asked = [pair.node.gpu(index).uuid for index in order]

    def seen(side: Side) -> set[str]:
        return {answer(side, asked).envs["NVIDIA_VISIBLE_DEVICES"] for _ in range(20)}

    assert len(seen(pair.theirs)) > 1
    assert seen(pair.ours) == {"5,1,7,0,3"}


@shows(d.NODE_ONCE)
def test_a_node_that_replicas_have_in_common_is_passed_once_by_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(4)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}", "--pass-device-specs")
    pair.wait_for(GPU)
    uuid = pair.node.gpu(0).uuid

    def count(side: Side) -> int:
        devices = answer(side, [f"{uuid}::0", f"{uuid}::1"]).devices
        return sum(device.container_path == "/dev/nvidia0" for device in devices)

    assert (count(pair.theirs), count(pair.ours)) == (2, 1)


@shows(d.REMEDY)
def test_our_refusals_say_what_to_do(make_node: MakeNode, start_pair: StartPair) -> None:
    pair = start_pair(make_node("t4x2"))
    pair.wait_for(GPU)
    theirs, ours = (side.allocate(GPU, [["GPU-0"]]) for side in (pair.theirs, pair.ours))
    assert theirs == Refusal(
        'invalid allocation request for "nvidia.com/gpu": invalid request: unknown device: GPU-0'
    )
    assert isinstance(ours, Refusal)
    assert ours.text.startswith(f"{Code.UNKNOWN_DEVICE}: {theirs.text}")
    assert "Delete the pod" in ours.text


@shows(d.NO_SENSE)
@pytest.mark.parametrize(("count", "code"), [(0, Code.EMPTY_REQUEST), (2, Code.DUPLICATE_DEVICE)])
def test_requests_without_sense_are_refused_by_us(
    make_node: MakeNode, start_pair: StartPair, count: int, code: Code
) -> None:
    pair = start_pair(make_node("t4x2"))
    pair.wait_for(GPU)
    asked = [pair.node.gpu(0).uuid] * count
    assert not isinstance(pair.theirs.allocate(GPU, [asked]), Refusal)
    ours = pair.ours.allocate(GPU, [asked])
    assert isinstance(ours, Refusal)
    assert ours.text.startswith(f"{code}: ")


# MPS


@shows(d.MPS_LIMITS, d.MPS_PRE_START)
def test_mps_containers_get_their_own_limits_from_us(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    config = write(scratch, {"sharing": {"mps": replicas(4)}})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    uuid = node.gpu(1).uuid
    more = dict(answer(pair.ours, [f"{uuid}::2"]).envs)
    for name in answer(pair.theirs, [f"{uuid}::2"]).envs:
        del more[name]
    assert more == {
        "CUDA_VISIBLE_DEVICES": uuid,
        "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": f"{uuid}={facts.T4.memory_mib // 4}M",
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "25",
    }
    for side, asks in ((pair.theirs, False), (pair.ours, True)):
        assert side.kubelet.told[GPU].options.pre_start_required is asks
        assert side.kubelet.wait_for(GPU).options.pre_start_required is asks
    # The comparison sees both, unless it is told to accept them.
    with pytest.raises(AssertionError):
        registrations_agree(pair)
    with pytest.raises(AssertionError):
        allocations_agree(pair, GPU, [f"{uuid}::2"])


@shows(d.MPS_DAEMON_DOWN)
def test_without_its_daemon_replicas_by_mps_are_unhealthy_with_us(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    config = write(scratch, {"sharing": {"mps": replicas(2)}})
    daemon, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    assert daemon.stop() == 0
    wait_for_health(pair.ours, {"Unhealthy"})
    assert set(pair.theirs.health(GPU).values()) == {"Healthy"}  # and stay so for ever


@shows(d.MPS_DAEMON_DOWN)
def test_a_daemon_that_is_not_there_yet_is_waited_for_by_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"mps": replicas(2)}})
    pair = start_pair(
        make_node("t4x2"),
        f"--config-file={config}",
        "--mps-root=/run/nvidia/mps",
        binds={"/mps": scratch / "mps"},
    )
    pair.ours.wait_for({GPU})
    wait_for_health(pair.ours, {"Unhealthy"})
    pair.theirs.process.wait_for_output("Retrying in 30s")
    assert pair.theirs.kubelet.registrations == 0


@shows(d.MPS_SEVERAL)
def test_several_replicas_by_mps_are_one_larger_share_with_us(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    sharing = replicas(4) | {"failRequestsGreaterThanOne": False}
    config = write(scratch, {"sharing": {"mps": sharing}})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    uuid = node.gpu(0).uuid
    asked = [f"{uuid}::0", f"{uuid}::3"]
    theirs = pair.theirs.allocate(GPU, [asked])
    assert isinstance(theirs, Refusal)
    assert "maximum request size for shared resources is 1" in theirs.text
    env = answer(pair.ours, asked).envs
    assert env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{uuid}={facts.T4.memory_mib // 2}M"
    assert env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "50"


@shows(d.MPS_BESIDE_TIME_SLICING)
def test_time_slicing_beside_mps_counts_with_us(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    ours_only = {
        "timeSlicing": replicas(3, rename="gpu.sliced", devices=[0]),
        "mps": replicas(2, rename="gpu.mps", devices=[1]),
    }
    config = write(scratch, {"sharing": ours_only})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.theirs.wait_for({GPU})
    pair.ours.wait_for({"nvidia.com/gpu.sliced", "nvidia.com/gpu.mps"})
    assert len(pair.theirs.health(GPU)) == 2 * 2
    assert pair.theirs.kubelet.resources() == [GPU]
    assert len(pair.ours.health("nvidia.com/gpu.sliced")) == 3
    assert len(pair.ours.health("nvidia.com/gpu.mps")) == 2


@shows(d.MPS_IN_MIG_MODE)
def test_a_gpu_in_mig_mode_has_no_replicas_by_mps_with_us(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("a100x2-mig-mixed")
    cut, whole = node.gpus()
    config = write(scratch, {"sharing": {"mps": replicas(2)}})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    both = {f"{gpu.uuid}::{n}" for gpu in (cut, whole) for n in range(2)}
    assert set(pair.theirs.health(GPU)) == both
    assert answer(pair.theirs, [f"{cut.uuid}::0"]).envs["NVIDIA_VISIBLE_DEVICES"] == cut.uuid
    assert set(pair.ours.health(GPU)) == {f"{whole.uuid}::{n}" for n in range(2)}
    pair.ours.process.wait_for_code(Code.GPU_SKIPPED, f"{cut.uuid}.* MIG mode")


# Health


@shows(d.ALL_REPLICAS_UNHEALTHY)
def test_a_broken_gpu_makes_all_its_replicas_unhealthy_with_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(4)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    broken = pair.node.gpu(0).uuid

    def unhealthy(side: Side) -> list[str]:
        return [i for i, health in side.health(GPU).items() if health == "Unhealthy"]

    deadline = time.monotonic() + PATIENCE
    while not (unhealthy(pair.theirs) and len(unhealthy(pair.ours)) == 4):
        assert time.monotonic() < deadline
        pair.node.faults.xid(0, 79)  # again: a watch that has just begun may have missed it
        time.sleep(0.5)
    time.sleep(0.5)
    assert len(unhealthy(pair.theirs)) == 1
    assert sorted(unhealthy(pair.ours)) == [f"{broken}::{n}" for n in range(4)]


@shows(d.DEAD_GPU)
def test_a_dead_gpu_costs_itself_with_us(make_node: MakeNode, start_pair: StartPair) -> None:
    node = make_node("a10x4")
    node.faults.lost(1)
    pair = start_pair(node)
    assert pair.theirs.process.wait() != 0
    pair.ours.wait_for({GPU})
    assert {i for i, health in pair.ours.health(GPU).items() if health == "Healthy"} == {
        gpu.uuid for gpu in node.gpus() if gpu.index != 1
    }


# Settings


@shows(d.EXTRAS_OFF)
def test_extra_modes_are_off_by_default_with_us(make_node: MakeNode, start_pair: StartPair) -> None:
    unset = {f"{name}_ENABLED": None for name in ("GDS", "MOFED", "GDRCOPY")}
    pair = start_pair(make_node("t4x2"), env=unset)
    pair.wait_for(GPU)
    uuid = pair.node.gpu(0).uuid
    assert dict(answer(pair.ours, [uuid]).envs) == {"NVIDIA_VISIBLE_DEVICES": uuid}
    assert dict(answer(pair.theirs, [uuid]).envs) == {
        "NVIDIA_VISIBLE_DEVICES": uuid,
        "NVIDIA_GDS": "enabled",
        "NVIDIA_MOFED": "enabled",
        "NVIDIA_GDRCOPY": "enabled",
    }


@shows(d.EMPTY_VARIABLE)
@pytest.mark.parametrize("variable", ["MIG_STRATEGY", "DEVICE_LIST_STRATEGY", "KUBELET_SOCKET"])
def test_a_variable_without_a_value_says_nothing_to_us(
    make_node: MakeNode, start_pair: StartPair, variable: str
) -> None:
    pair = start_pair(make_node("t4x2"), env={variable: ""})
    pair.ours.wait_for({GPU})
    if variable == "KUBELET_SOCKET":
        pair.theirs.process.wait_for_output("Starting to serve 'nvidia.com/gpu'")
    else:
        assert pair.theirs.process.wait() != 0
    assert pair.theirs.kubelet.registrations == 0


@shows(d.STRICT_KEYS)
@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("flags: {renameByDefault: true}", "sharing.timeSlicing.renameByDefault"),
        ("flags: {migStrat: none}", "did you mean `migStrategy`?"),
        ("flags: {MigStrategy: none}", "did you mean `migStrategy`?"),
        ("version: v1\nversion: v1", "duplicate key"),
    ],
)
def test_keys_that_would_be_ignored_are_errors_with_us(
    make_node: MakeNode, peers: Peers, scratch: Path, text: str, words: str
) -> None:
    config = write(scratch, text)
    assert words in only_we_refuse(peers, make_node("t4x2"), scratch, f"--config-file={config}")


@shows(d.STRICT_VALUES)
@pytest.mark.parametrize(
    ("flag", "entries", "words"),
    [
        ("--driver-root=run", [], "absolute path"),
        ("serve", [], "unexpected argument"),
        ("", [{"name": "gpu", "replicas": 2.0}], "replicas"),
        ("", [{"name": "gpu", "replicas": 2, "devices": []}], "name at least one device"),
        ("", [{"name": "gpu", "replicas": 2}, {"name": "gpu", "replicas": 3}], "list devices"),
    ],
)
def test_values_that_would_be_ignored_are_errors_with_us(
    make_node: MakeNode,
    peers: Peers,
    scratch: Path,
    flag: str,
    entries: list[object],
    words: str,
) -> None:
    sharing = {"timeSlicing": {"resources": entries}} if entries else {}
    config = write(scratch, {"sharing": sharing})
    flags = [f"--config-file={config}", *filter(None, [flag])]
    assert words in only_we_refuse(peers, make_node("t4x2"), scratch, *flags)


@shows(d.HONOURED)
def test_names_and_devices_of_the_file_count_with_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(
        scratch,
        {
            "resources": {"gpus": [{"pattern": "*A100*", "name": "a100"}]},
            "sharing": {"timeSlicing": replicas(4, rename="gpu.slow", devices=[0, 3])},
        },
    )
    node = make_node("mixed")  # T4, A100, T4, L40S
    pair = start_pair(node, f"--config-file={config}")
    pair.theirs.wait_for({GPU})
    pair.ours.wait_for({GPU, "nvidia.com/a100", "nvidia.com/gpu.slow"})
    assert len(pair.theirs.health(GPU)) == 4 * 4
    assert pair.theirs.kubelet.resources() == [GPU]
    assert set(pair.ours.health(GPU)) == {node.gpu(2).uuid}
    assert set(pair.ours.health("nvidia.com/a100")) == {node.gpu(1).uuid}
    assert len(pair.ours.health("nvidia.com/gpu.slow")) == 2 * 4


@shows(d.ONE_REPLICA)
def test_a_single_replica_is_allowed_by_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(1)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    assert pair.theirs.process.wait() != 0
    assert "number of replicas must be >= 2" in pair.theirs.process.output()
    pair.ours.wait_for({GPU})
    assert set(pair.ours.health(GPU)) == {f"{gpu.uuid}::0" for gpu in pair.node.gpus()}


@shows(d.SOCKET_DIRECTORY)
def test_our_sockets_are_where_the_kubelet_looks(
    make_node: MakeNode, peers: Peers, scratch: Path
) -> None:
    flag = "--kubelet-socket=/elsewhere/kubelet.sock"
    node = make_node("t4x2")
    with ListeningKubelet(scratch / "o") as kubelet:
        binds = {"/elsewhere": kubelet.directory}
        with running(OURS, node, scratch / "usual", [flag], {}, binds) as process:
            Side("our plugin", kubelet, process).wait_for({GPU})
            assert (kubelet.directory / "nvidia-gpu.sock").exists()
    place = scratch / "t"
    place.mkdir()  # no kubelet: it would wait for a socket that never comes
    with running(
        peers.device_plugin, node, scratch / "usual", [flag], {}, {"/elsewhere": place}
    ) as process:
        process.wait_for_output("Starting to serve 'nvidia.com/gpu' on /var/lib/kubelet/")
        assert (scratch / "usual" / "nvidia-gpu.sock").exists()
        assert not (place / "nvidia-gpu.sock").exists()


@shows(d.LAST_GOOD_SETTINGS)
def test_a_broken_file_leaves_the_last_good_settings_in_force_with_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(3)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    config.write_text("version: v2")
    for side in (pair.theirs, pair.ours):
        side.process.send(signal.SIGHUP)
    assert pair.theirs.process.wait() != 0
    pair.ours.process.wait_for_code(Code.CONFIGURATION_INVALID)
    assert list(pair.ours.health(GPU).values()) == ["Healthy"] * 6


# Hardware


@shows(d.PARTS_OF_INSTANCES)
def test_a_part_of_a_gpu_instance_is_not_sold_for_the_whole_by_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.set({"gpu.0.mig.0.ci_slices": 1})
    pair = start_pair(node, "--mig-strategy=mixed")
    mig = "nvidia.com/mig-"
    pair.theirs.wait_for({GPU, f"{mig}1g.5gb", f"{mig}2g.10gb", f"{mig}3g.20gb"})
    pair.ours.wait_for({GPU, f"{mig}1g.5gb", f"{mig}2g.10gb"})
    assert f"{mig}3g.20gb" not in pair.ours.kubelet.resources()
    assert pair.ours.process.logged(Code.MIG_DEVICE_SKIPPED, "1c.3g.20gb") == 1


@shows(d.WHOLE_PROFILE)
def test_media_extensions_are_part_of_the_name_with_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100x2-mig-mixed")
    node.faults.mig(0, ["1g.5gb+me", "1g.5gb"])
    extended, plain = node.gpu(0).mig
    pair = start_pair(node, "--mig-strategy=mixed")
    small = "nvidia.com/mig-1g.5gb"
    pair.theirs.wait_for({GPU, small})
    pair.ours.wait_for({GPU, small, f"{small}.me"})
    assert set(pair.theirs.health(small)) == {extended.uuid, plain.uuid}
    assert set(pair.ours.health(small)) == {plain.uuid}
    assert set(pair.ours.health(f"{small}.me")) == {extended.uuid}


# Preferences


@shows(d.SURE_ADVICE)
def test_too_few_devices_are_no_error_with_us(
    make_node: MakeNode, start_pair: StartPair, scratch: Path
) -> None:
    config = write(scratch, {"sharing": {"timeSlicing": replicas(2)}})
    pair = start_pair(make_node("t4x2"), f"--config-file={config}")
    pair.wait_for(GPU)
    free = sorted(pair.ours.health(GPU))
    theirs = pair.theirs.preferred(GPU, free, [], 5)
    assert isinstance(theirs, Refusal)
    assert "not enough available devices" in theirs.text
    ours = pair.ours.preferred(GPU, free, [], 5)
    assert not isinstance(ours, Refusal)
    assert sorted(ours) == free


@shows(d.SURE_ADVICE)
def test_three_of_five_gpus_are_an_answer_of_ours_and_the_end_of_theirs(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    node = make_node("a100-40x8")
    join(node, {(4, 5): 12})
    pair = start_pair(node)
    pair.wait_for(GPU)
    free = [node.gpu(index).uuid for index in (0, 1, 2, 4, 5)]
    assert isinstance(pair.theirs.preferred(GPU, free, [], 3), Refusal)
    assert pair.theirs.process.wait() != 0
    assert "nil pointer" in pair.theirs.process.output()
    ours = pair.ours.preferred(GPU, free, [], 3)
    assert not isinstance(ours, Refusal)
    assert set(ours) >= {node.gpu(4).uuid, node.gpu(5).uuid}


@shows(d.CLOSER_GROUP)
def test_our_group_is_the_closest_one(make_node: MakeNode, start_pair: StartPair) -> None:
    node = make_node("v100x4")
    join(node, {(0, 1): 3, (0, 2): 2, (1, 3): 2})
    pair = start_pair(node)
    pair.wait_for(GPU)
    free = [gpu.uuid for gpu in node.gpus()]

    def chosen(side: Side) -> list[str]:
        found = side.preferred(GPU, free, [], 2)
        assert not isinstance(found, Refusal)
        return found

    assert set(chosen(pair.ours)) == {free[0], free[1]}
    assert closeness(node, chosen(pair.theirs)) < closeness(node, chosen(pair.ours))


@shows(d.SPREAD_OVER_GPUS)
def test_mig_devices_come_from_different_gpus_with_us(
    make_node: MakeNode, start_pair: StartPair
) -> None:
    pair = start_pair(make_node("a100x2-mig-single"), "--mig-strategy=single")
    pair.wait_for(GPU)
    card = {mig.uuid: gpu.index for gpu in pair.node.gpus() for mig in gpu.mig}

    def cards(side: Side) -> set[int]:
        """How many GPUs two devices come from."""
        found = (side.preferred(GPU, list(card), [], 2) for _ in range(30))
        return {len({card[i] for i in two}) for two in found if not isinstance(two, Refusal)}

    assert 1 in cards(pair.theirs)
    assert cards(pair.ours) == {2}


# Helpers


def answer(side: Side, ids: list[str], resource: str = GPU) -> api.ContainerAllocateResponse:
    answers = side.allocate(resource, [ids])
    assert not isinstance(answers, Refusal), answers
    [one] = answers
    return one


def replicas(count: int, **more: object) -> dict[str, object]:
    return {"resources": [{"name": GPU, "replicas": count, **more}]}


def write(scratch: Path, config: object) -> Path:
    path = scratch / "config.yaml"
    path.write_text(config if isinstance(config, str) else json.dumps(config))
    return path


def join(node: SimNode, links: dict[tuple[int, int], int]) -> None:
    """These NVLinks, and no others."""
    state = node.state.values()
    counts = {gpu.index: int(state[f"gpu.{gpu.index}.nvlink.count"]) for gpu in node.gpus()}
    ends = {gpu: ["off"] * count for gpu, count in counts.items()}
    used = dict.fromkeys(counts, 0)
    for (one, other), number in links.items():
        for here, there in ((one, other), (other, one)):
            for _ in range(number):
                ends[here][used[here]] = f"gpu:{node.gpu(there).pci}"
                used[here] += 1
    node.set(
        {f"gpu.{gpu}.nvlink.{n}": end for gpu, all_ in ends.items() for n, end in enumerate(all_)}
    )


def wait_for_health(side: Side, wanted: set[str]) -> None:
    side.wait_until(lambda: set(side.health(GPU).values()) == wanted, f"health {wanted}")


def only_we_refuse(peers: Peers, node: SimNode, scratch: Path, *flags: str) -> str:
    """Returns our last words."""
    with (
        ListeningKubelet(scratch / "t") as kubelet,
        running(peers.device_plugin, node, kubelet.directory, flags, {}, {}) as theirs,
        running(OURS, node, scratch / "o", flags, {}, {}) as ours,
    ):
        Side("NVIDIA's plugin", kubelet, theirs).wait_for({GPU})
        assert ours.wait() in (1, 2)
        return ours.output()
