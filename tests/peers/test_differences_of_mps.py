"""Accepted differences from NVIDIA's device plugin 0.19.0: MPS. Both sides are shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuslice.codes import Code

from . import facts
from .agreement import differences as d
from .agreement.compare import allocations_agree, registrations_agree
from .agreement.configs import GPU, replicas, write
from .agreement.differences import shows
from .agreement.pair import Refusal, Side
from .agreement.requests import answer
from .conftest import MakeNode, ShareGpus, StartPair


@shows(d.MPS_LIMITS, d.MPS_PRE_START)
def test_our_plugin_sets_limits_for_mps_containers(
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


@shows(d.MPS_SHM)
def test_our_containers_share_memory_with_those_of_their_daemon_only(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    config = write(scratch, {"sharing": {"mps": replicas(4)}})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    for side, directory in ((pair.theirs, place / "shm"), (pair.ours, place / GPU / "shm")):
        mounts = answer(side, [f"{node.gpu(0).uuid}::0"]).mounts
        [shm] = [mount for mount in mounts if mount.container_path == "/dev/shm"]
        assert shm.host_path == str(directory)


@shows(d.MPS_PRIVILEGED_SOCKET)
def test_our_containers_do_not_get_the_privileged_socket(
    make_node: MakeNode, start_pair: StartPair, share_gpus: ShareGpus, scratch: Path
) -> None:
    node = make_node("t4x2")
    config = write(scratch, {"sharing": {"mps": replicas(4)}})
    _, place = share_gpus(node, config)
    pair = start_pair(node, f"--config-file={config}", f"--mps-root={place}", binds={"/mps": place})
    pair.wait_for(GPU)
    found = [
        {m.container_path: m.host_path for m in answer(side, [f"{node.gpu(0).uuid}::0"]).mounts}
        for side in (pair.theirs, pair.ours)
    ]
    inside = f"/mps/{GPU}/pipe/control_privileged"
    assert [mounts.get(inside) for mounts in found] == [None, f"{place}/{GPU}/pipe/control"]


@shows(d.MPS_DAEMON_DOWN)
def test_our_mps_replicas_are_unhealthy_without_their_daemon(
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
def test_our_plugin_waits_for_an_mps_daemon_that_is_not_running_yet(
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
def test_several_mps_replicas_are_one_larger_share_with_our_plugin(
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
def test_our_plugin_combines_time_slicing_and_mps(
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
def test_our_plugin_advertises_no_mps_replicas_of_a_gpu_in_mig_mode(
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


def wait_for_health(side: Side, wanted: set[str]) -> None:
    side.wait_until(lambda: set(side.health(GPU).values()) == wanted, f"health {wanted}")
