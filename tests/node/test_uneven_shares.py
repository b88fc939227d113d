"""One GPU with named shares of different sizes: each container has exactly its own."""

from __future__ import annotations

import grpc
import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod, StartError

from .conftest import MakeRig
from .mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    MIB,
    advertised,
    bare,
    compute_modes,
    daemons,
    gpus_of,
    served,
    wait_until_ready,
)
from .rig import GPU, Rig, eventually, needs_root

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]

LARGE, SMALL = f"{GPU}.large", f"{GPU}.small"
# The larger part of the threads has the smaller part of the memory.
SHARES = "[{name: large, threads: 70%, memory: 4GiB}, {name: small, threads: 30%, memory: 8GiB}]"


def divided(shares: str = SHARES, *, section: str = "", entry: str = "devices: [0], ") -> str:
    return f"sharing: {{mps: {{{section}resources: [{{name: gpu, {entry}shares: {shares}}}]}}}}"


@pytest.mark.parametrize("driver", [535, 570], ids=["ordinal-keys", "uuid-keys"])
def test_each_share_has_exactly_its_own_memory_and_sms_beside_the_others(
    make_rig: MakeRig, driver: int
) -> None:
    rig = make_rig("t4x2", driver=driver)
    gpu, whole = (gpu.uuid for gpu in rig.node.gpus())
    context = int(rig.node.state.values()["cuda.context_bytes"])
    with served(rig, divided()), advertised(rig, LARGE, SMALL):
        assert rig.advertised() == {
            LARGE: [f"{gpu}::large-0"],
            SMALL: [f"{gpu}::small-0"],
            GPU: [whole],
        }
        assert gpus_of(daemons(rig)[GPU]) == [gpu]
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS, DEFAULT]
        answers = {}
        for resource, memory_mib, sms in ((LARGE, 4096, 28), (SMALL, 8192, 12)):  # of 40 SMs
            pod = Pod(resource.rpartition(".")[2], [Container("main", {resource: 1})])
            rig.kubelet.admit(pod)
            answers[resource] = answer = rig.kubelet.start_container(pod, "main")
            report = rig.contained(answer, "info")
            [device] = report["devices"]
            assert report["warnings"] == []
            assert (device["uuid"], device["limit_bytes"]) == (gpu, memory_mib * MIB)
            assert device["sms"] == sms
        # With all of its neighbour's memory in use, each can take its own to the last byte.
        for one, other, memory_mib in ((LARGE, SMALL, 8192), (SMALL, LARGE, 4096)):
            allocated = str((4096 if one == LARGE else 8192) * MIB - context)
            with rig.holding(answers[one], "--alloc", allocated) as neighbour:
                neighbour.wait_for_output('"error": ?null')
                filled = rig.contained(answers[other], "fill")
                assert filled["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
                assert filled["total_bytes"] == memory_mib * MIB


def test_shares_by_sms_and_by_count(rig: Rig) -> None:
    shares = "[{name: a, threads: 20 SMs, memory: 2GiB, count: 2}, {name: b, memory: 1GiB}]"
    gpu = rig.node.gpus()[0].uuid
    text = divided(shares, section="overcommit: allow, failRequestsGreaterThanOne: false, ")
    a, b = f"{GPU}.a", f"{GPU}.b"
    with served(rig, text), advertised(rig, a, b):
        assert rig.advertised()[a] == [f"{gpu}::a-0", f"{gpu}::a-1"]
        for ids, memory_mib, sms in (
            ((f"{gpu}::a-1",), 2048, 20),
            ((f"{gpu}::a-0", f"{gpu}::a-1"), 4096, 40),
            ((f"{gpu}::b-0",), 1024, 2),  # proportional to its memory: 6%
        ):
            answer = rig.allocate(b if "::b-" in ids[0] else a, *ids)
            [device] = rig.contained(answer, "info")["devices"]
            assert (device["limit_bytes"], device["sms"]) == (memory_mib * MIB, sms)


def test_the_daemon_of_uneven_shares_limits_nobody(rig: Rig) -> None:
    with served(rig, divided()):
        wait_until_ready(rig)
        assert bare(rig).device["limit_bytes"] is None
        assert bare(rig).device["sms"] == 40


def test_a_container_gets_one_share_unless_the_settings_allow_more(rig: Rig) -> None:
    text = divided("[{name: a, threads: 30%, memory: 2GiB, count: 2}]")
    gpu = rig.node.gpus()[0].uuid
    with (
        served(rig, text),
        advertised(rig, f"{GPU}.a"),
        pytest.raises(grpc.RpcError, match=f"{Code.REQUEST_TOO_LARGE}: "),
    ):
        rig.allocate(f"{GPU}.a", f"{gpu}::a-0", f"{gpu}::a-1")


def test_a_container_with_shares_of_two_names_does_not_start(rig: Rig) -> None:
    with served(rig, divided()), advertised(rig, LARGE, SMALL):
        both = Pod("both", [Container("main", {LARGE: 1, SMALL: 1})])
        rig.kubelet.admit(both)
        reason = f"{Code.MIXED_SHARES}: {LARGE}: .*also requests {SMALL}.*use a container for each"
        with pytest.raises(StartError, match=reason):
            rig.kubelet.start_container(both, "main")
        rig.kubelet.remove(both)
        each = Pod("each", [Container("one", {LARGE: 1}), Container("two", {SMALL: 1})])
        rig.kubelet.admit(each)
        for name, memory_mib in (("one", 4096), ("two", 8192)):
            answer = rig.kubelet.start_container(each, name)
            [device] = rig.contained(answer, "info")["devices"]
            assert device["limit_bytes"] == memory_mib * MIB


def test_an_init_container_with_shares_of_two_names_does_not_start(rig: Rig) -> None:
    """Only the checkpoint of the kubelet has it."""
    with served(rig, divided()), advertised(rig, LARGE, SMALL):
        first = Container("first", {LARGE: 1, SMALL: 1}, init=True)
        pod = Pod("steps", [first, Container("main", {SMALL: 1})])
        rig.kubelet.admit(pod)
        with pytest.raises(StartError, match=f"{Code.MIXED_SHARES}: "):
            rig.kubelet.start_container(pod, "first")


def test_each_share_advertises_and_prefers_one_gpu_by_itself(rig: Rig) -> None:
    shares = "[{name: a, threads: 10%, memory: 2GiB, count: 3}, {name: b, memory: 4GiB}]"
    text = divided(shares, section="failRequestsGreaterThanOne: false, ", entry="")
    a, b = f"{GPU}.a", f"{GPU}.b"

    def allocatable(of_a: int, of_b: int) -> None:
        """Free shares of one GPU, and those in use."""
        eventually(
            lambda: (rig.kubelet.allocatable(a), rig.kubelet.allocatable(b)) == (of_a, of_b),
            f"{of_a} of a, {of_b} of b",
        )

    def gpu_of(name: str, resource: str, count: int) -> str:
        pod = Pod(name, [Container("main", {resource: count})])
        rig.kubelet.admit(pod)
        [allocation] = rig.kubelet.allocations(pod)
        assert len(allocation.ids) == count
        [gpu] = {device_id.partition("::")[0] for device_id in allocation.ids}
        return gpu

    with served(rig, text), advertised(rig, a, b):
        assert (rig.kubelet.capacity(a), rig.kubelet.capacity(b)) == (6, 2)
        allocatable(3, 1)
        first = gpu_of("one", a, 1)
        allocatable(1 + 3, 1)
        assert gpu_of("three", a, 3) != first
        allocatable(4 + 2, 1)
        gpu_of("other", b, 1)
        allocatable(6, 1 + 1)
        assert gpu_of("two", a, 2) == first


def test_a_gpu_fault_makes_all_its_shares_unhealthy(rig: Rig) -> None:
    with served(rig, divided()), advertised(rig, LARGE, SMALL):
        rig.node.faults.xid(0, 79)
        rig.wait_for_healthy(LARGE, set())
        rig.wait_for_healthy(SMALL, set())
        assert len(rig.healthy(GPU)) == 1


def test_shares_that_exceed_the_gpu_leave_the_last_good_settings_in_force(rig: Rig) -> None:
    too_much = divided(SHARES.replace("30%", "31%"))
    with served(rig, divided()) as program, advertised(rig, LARGE, SMALL) as plugin:
        before = daemons(rig)
        rig.config(too_much)
        for process in (program, plugin):
            [line] = process.wait_for_code(Code.CONFIGURATION_INVALID)
            assert Code.OVERCOMMITTED in line or "101% of its threads" in line
        assert daemons(rig) == before
        assert rig.kubelet.allocatable(LARGE) == 1
        rig.config(divided(SHARES.replace("30%", "31%"), section="overcommit: warn, "))
        for process in (program, plugin):
            process.wait_for_code(Code.OVERCOMMITTED)
        gpu = rig.node.gpus()[0].uuid
        env = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
        eventually(
            lambda: rig.allocate(SMALL, f"{gpu}::small-0").envs[env] == "31", "the new limit"
        )
        # Other limits need neither another daemon nor a new registration.
        assert daemons(rig) == before


def test_other_shares_replace_the_resources_and_keep_the_daemon(rig: Rig) -> None:
    with served(rig, divided()), advertised(rig, LARGE, SMALL):
        before = daemons(rig)
        rig.config(divided("[{name: half, threads: 50%, memory: 7GiB, count: 2}]"))
        rig.kubelet.wait_for(f"{GPU}.half")
        rig.wait_for_limits(f"{GPU}.half")
        eventually(lambda: rig.kubelet.allocatable(LARGE) == 0, "no large share")
        assert daemons(rig) == before
