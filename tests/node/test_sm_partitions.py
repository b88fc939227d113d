"""Static partitions of SMs: each container gets its own, when it starts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import Container, Pod, StartError
from gpuslice_sim.mps.launch import MpsDaemon
from gpuslice_sim.mps.simcuda import HeldClient
from gpuslice_sim.process import BackgroundProcess

from .conftest import MakeRig
from .rig import ALL, RESOURCE, Rig, eventually
from .test_limits_hold import exclusive

VARIABLE = "CUDA_MPS_SM_PARTITION"


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    """Each GPU has 108 SMs in chunks of 4, and 10 units of memory."""
    rig = make_rig("a100-40x8", driver=590, cdi=True)
    exclusive(rig)
    return rig


@pytest.fixture
def daemon(rig: Rig) -> Iterator[MpsDaemon]:
    with started(rig) as daemon:
        yield daemon


def started(rig: Rig, *, static: bool = True) -> MpsDaemon:
    return MpsDaemon(rig.node, rig.pipe, rig.directory / "log", static_partitioning=static)


def flags(rig: Rig, bind: str = "cdi") -> tuple[str, ...]:
    directory = rig.directory / "cdi"
    return (
        ALL, "--mps-pipe", str(rig.pipe), "--memory-unit=4GiB", "--threads=sm_partition",
        f"--bind={bind}", f"--cdi-directory={directory}",
    )  # fmt: skip


@contextmanager
def agent(rig: Rig) -> Iterator[BackgroundProcess]:
    with rig.agent(*flags(rig)) as process:
        process.wait_for_code(Code.REGISTERED)
        rig.wait_for_limits()
        yield process
    # Otherwise the kubelet may still use its connection when the next agent has registered.
    rig.kubelet.wait_until(lambda: rig.kubelet.allocatable(RESOURCE) == 0, "the end of the agent")


def admitted(rig: Rig, name: str, units: int) -> Pod:
    pod = Pod(name, [Container("main", {RESOURCE: units})])
    rig.kubelet.admit(pod)
    return pod


def partitions(daemon: MpsDaemon) -> int:
    rows = [line.split() for line in daemon.command("lspart").splitlines()]
    return sum(len(row) == 7 and row[0].startswith("GPU-") and row[1] != "-" for row in rows)


def test_each_container_gets_whole_sms_of_its_own(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig):
        seen = set()
        for name, units, sms in (("half", 5, 52), ("small", 1, 8), ("other", 1, 8)):
            answer = rig.kubelet.start_container(admitted(rig, name, units), "main")
            [device] = rig.simcuda(answer, "info")["devices"]
            assert device["sms"] == sms
            assert answer.envs[VARIABLE].startswith(device["uuid"])
            seen.add(answer.envs[VARIABLE])
        assert len(seen) == 3


def test_a_container_that_restarts_keeps_its_partition_also_with_another_agent(
    rig: Rig, daemon: MpsDaemon
) -> None:
    with agent(rig):
        pod = admitted(rig, "p", 2)
        first = rig.kubelet.start_container(pod, "main").envs[VARIABLE]
        assert rig.kubelet.start_container(pod, "main").envs[VARIABLE] == first
    with agent(rig):
        assert rig.kubelet.start_container(pod, "main").envs[VARIABLE] == first
    assert partitions(daemon) == 1


def test_partitions_end_with_their_daemon_and_containers_get_new_ones(rig: Rig) -> None:
    with agent_after_daemon(rig) as (daemon, pod):
        answer = rig.kubelet.start_container(pod, "main")
        daemon.stop()
        daemon.start()
        daemon.command(f"sm_partition add {answer.envs['NVIDIA_VISIBLE_DEVICES']} 1")
        rig.wait_for_limits()
        answer = rig.kubelet.start_container(pod, "main")
        [device] = rig.simcuda(answer, "info")["devices"]
        assert device["sms"] == 52


@contextmanager
def agent_after_daemon(rig: Rig) -> Iterator[tuple[MpsDaemon, Pod]]:
    daemon = started(rig)
    daemon.start()
    try:
        with agent(rig):
            yield daemon, admitted(rig, "p", 5)
    finally:
        daemon.stop()


def test_partitions_of_pods_that_are_gone_are_removed(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig) as process:
        pods = [admitted(rig, f"p{number}", 2) for number in range(3)]
        for pod in pods:
            rig.kubelet.start_container(pod, "main")
        assert partitions(daemon) == 3
        rig.kubelet.remove(pods[1])
        process.wait_for_code(Code.SM_PARTITION_REMOVED)
        eventually(lambda: partitions(daemon) == 2, "two partitions")


def test_a_container_waits_until_enough_sms_are_free(rig: Rig, daemon: MpsDaemon) -> None:
    with agent(rig):
        pod = admitted(rig, "p", 5)
        gpu = rig.kubelet.allocations(pod)[0].ids[0].rpartition("-_-")[0]
        foreign = daemon.command(f"sm_partition add {gpu} 20")
        env = {
            "CUDA_MPS_PIPE_DIRECTORY": str(rig.pipe),
            "CUDA_VISIBLE_DEVICES": gpu,
            VARIABLE: foreign,
        }
        with HeldClient(rig.node.bin / "simcuda", env=env) as client:
            client.ready()
            with pytest.raises(StartError, match=f"{Code.SM_PARTITION_UNAVAILABLE}: .*13 chunks"):
                rig.kubelet.start_container(pod, "main")
        # Nothing uses that partition any more, and no specification has it.
        eventually(lambda: "Yes" not in daemon.command("lspart"), "no clients")
        rig.kubelet.start_container(pod, "main")


def test_a_daemon_without_static_partitions_starts_no_container(rig: Rig) -> None:
    with started(rig, static=False), agent(rig):
        pod = admitted(rig, "p", 1)
        with pytest.raises(StartError, match="start it with -S"):
            rig.kubelet.start_container(pod, "main")


@pytest.mark.parametrize(
    ("profile", "driver", "bind", "reason"),
    [
        ("a100-40x8", 570, "cdi", "driver 570.* has no static partitions"),
        ("a100-40x8", 590, "env", "by CDI, and that cannot be used: the option bind is env"),
        ("t4x2", 590, "cdi", "static partitions from compute capability 8.0 on"),
    ],
)
def test_without_support_the_agent_names_what_is_missing(
    make_rig: MakeRig, profile: str, driver: int, bind: str, reason: str
) -> None:
    rig = make_rig(profile, driver=driver, cdi=True)
    with rig.agent(*flags(rig, bind)) as process:
        assert process.wait() == 1
        assert re.search(reason, process.output())
