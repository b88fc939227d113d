"""What a container can do to NVIDIA's own MPS control daemon, by driver branch."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.mps.launch import kill
from gpuslice_sim.process import BackgroundProcess
from tests.node.mps_commands import occupied, send
from tests.node.mps_programs import (
    PATIENCE,
    advertised,
    one_replica_each,
    running,
    wait_until_ready,
)
from tests.node.rig import ALL, BIN, GPU, RESOURCE, Rig, eventually
from tests.node.test_node_config import kubernetes
from tests.timing import timing
from tests.unit.cluster.kubernetes import ConfigMap, Kubernetes

from .conftest import MakeNode
from .driver_programs import DriverPrograms
from .real_mps import RealMps, install

__all__ = ["kubernetes"]

ALICE = 1000
REFUSED = {
    "quit": "Not enough privilege to execute quit command",
    "quit -t 0": "Not enough privilege to execute quit command",
}
SETTINGS = {
    "set_default_active_thread_percentage 7": "get_default_active_thread_percentage",
    "set_default_device_pinned_mem_limit 0 9G": "get_default_device_pinned_mem_limit 0",
    "set_default_client_priority 1": "get_default_client_priority",
}


@pytest.fixture
def mps(driver_programs: DriverPrograms, make_node: MakeNode, scratch: Path) -> Iterator[RealMps]:
    node = make_node("t4x2", driver=driver_programs.branch)
    pod_resources = scratch / "pod-resources" / "kubelet.sock"
    with Kubelet(scratch / "device-plugins", pod_resources=pod_resources) as kubelet:
        real = install(Rig(node, kubelet, scratch), driver_programs)
        yield real
        for pid in (*running(real.rig.mps_root).values(), *real.daemons()):
            kill(pid)


def in_container(mps: RealMps, answer: api.ContainerAllocateResponse, line: str) -> str:
    """The answer to root in a container with these mounts."""
    places = {mount.container_path: Path(mount.host_path) for mount in answer.mounts}
    argv = mps.rig.node.namespace_command([str(mps.control)], places)
    return send(argv, answer.envs["CUDA_MPS_PIPE_DIRECTORY"], line)


def test_root_in_a_container_cannot_end_the_daemon_or_change_its_settings(mps: RealMps) -> None:
    rig = mps.rig
    with mps.served(one_replica_each(4), env=timing(mps_daemon_probe=60)), advertised(rig, GPU):
        before = mps.daemons()
        answer = rig.allocate(GPU, min(rig.kubelet.devices(GPU)))
        assert in_container(mps, answer, "get_server_list") == ""
        for line, text in REFUSED.items():
            assert in_container(mps, answer, line) == text
        for line, get in SETTINGS.items():
            earlier = mps.command(get)
            said = in_container(mps, answer, line)
            is_open = mps.branch < 550
            assert said.startswith("Insufficient privileges for UID 0") is not is_open, line
            assert (mps.command(get) != earlier) is is_open, line
        assert mps.daemons() == before


def test_root_in_a_container_can_end_a_server(mps: RealMps) -> None:
    """NVIDIA's program asks for the user only, which is root in a container too."""
    ended = mps.rig.directory / "ended"
    mps.server.write_text(
        f"#!/bin/bash\ntrap 'touch {ended}; exit' INT\nwhile [ -e $0 ]; do sleep 0.05; done\n"
    )
    rig = mps.rig
    with mps.served(one_replica_each(4)), advertised(rig, GPU):
        answer = rig.allocate(GPU, min(rig.kubelet.devices(GPU)))
        mps.command("start_server -uid 0")
        eventually(lambda: mps.command("get_server_list"), "the server")
        server = mps.command("get_server_list")
        assert in_container(mps, answer, f"shutdown_server {server} -f") == ""
        eventually(ended.exists, "the end of the server")


@pytest.mark.parametrize("line", [line for line in SETTINGS if "priority" not in line])
def test_defaults_that_a_container_changes_are_set_right_with_an_event(
    mps: RealMps, line: str, kubernetes: Kubernetes
) -> None:
    rig = mps.rig
    configs = ConfigMap(rig.directory / "configs", default=one_replica_each(4))
    kubernetes.put("nodes", "n1")
    env = {
        "NODE_NAME": "n1",
        "KUBECONFIG": str(kubernetes.kubeconfig(rig.directory / "kubeconfig")),
        "CONFIG_FILE_SRCDIR": str(configs.directory),
        "DEFAULT_CONFIG": "default",
        **mps.env(),
    }
    argv = [str(BIN / "mps-control-daemon")]

    def reasons() -> list[str]:
        found = list(kubernetes.objects.items())
        return [event["reason"] for (kind, _), event in found if kind == "events"]

    with rig.run(argv, name="mps", env=env, places={"/mps": rig.mps_root}) as program:
        wait_until_ready(rig)
        earlier = mps.command(SETTINGS[line])
        mps.command(line, user=ALICE)
        if mps.branch < 550:
            program.wait_for_code(Code.MPS_DEFAULT_CHANGED)
            eventually(lambda: Code.MPS_DEFAULT_CHANGED in reasons(), "an event of the node")
        assert mps.command(SETTINGS[line]) == earlier
        program.stop(PATIENCE)
        if mps.branch >= 550:
            assert program.logged(Code.MPS_DEFAULT_CHANGED) == 0


@pytest.mark.parametrize("names", [["control"], ["control", "control_privileged"]])
def test_sockets_that_a_container_deletes_are_put_back(mps: RealMps, names: list[str]) -> None:
    rig = mps.rig
    with mps.served(one_replica_each(4)) as program, advertised(rig, GPU):
        before = mps.daemons()
        for name in names:
            (mps.pipe / name).unlink()
        program.wait_for_code(Code.MPS_SOCKETS_RESTORED)
        # Another user cannot reach the privileged socket.
        assert mps.command("get_default_active_thread_percentage", user=ALICE) == "25.0"
        rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))
        assert mps.daemons() == before
        assert program.stop(PATIENCE) == 0


def test_a_deleted_socket_makes_slices_unhealthy(mps: RealMps) -> None:
    rig = mps.rig
    mps.start_foreign()
    with rig.agent(f"--mps-pipe={mps.pipe}", ALL) as agent:
        rig.wait_for_limits(RESOURCE)
        (mps.pipe / "control").unlink()
        # The control program of root still reaches the daemon.
        assert mps.command("get_default_active_thread_percentage") == "100.0"
        rig.wait_for_healthy(RESOURCE, set())
        agent.wait_for_code(Code.MPS_UNAVAILABLE, "was deleted")


def test_a_read_only_pipe_directory_serves_clients_and_keeps_its_sockets(mps: RealMps) -> None:
    rig = mps.rig
    with mps.served(one_replica_each(4)), _advertised_read_only(rig):
        answer = rig.allocate(GPU, min(rig.kubelet.devices(GPU)))
        [mount] = [one for one in answer.mounts if one.host_path.endswith("/pipe")]
        assert mount.read_only
        script = (
            f"mount --bind -o ro {mps.pipe} {mps.pipe} && "
            f"{{ rm -f {mps.pipe}/control 2>/dev/null; exec {mps.control}; }}"
        )
        argv = ["unshare", "-m", "sh", "-c", script]
        assert send(argv, mps.pipe, "get_default_client_priority") == "0"
        assert (mps.pipe / "control").is_socket()


def _advertised_read_only(rig: Rig) -> BackgroundProcess:
    flags = (f"--mps-root={rig.mps_root}", f"--config-file={rig.directory / 'config.yaml'}")
    plugin = rig.plugin(*flags, "--mps-pipe-read-only", places={"/mps": rig.mps_root})
    rig.wait_for_limits(GPU)
    return plugin


def test_a_program_that_occupies_the_daemon_does_not_make_it_restart(mps: RealMps) -> None:
    rig = mps.rig
    env = mps.env() | timing(mps_command=0.5)
    with mps.served(one_replica_each(4), env=env) as program, advertised(rig, GPU):
        before = mps.daemons()
        with occupied(mps.control, mps.pipe):
            program.wait_for_code(Code.MPS_UNAVAILABLE, "another program keeps")
            rig.wait_for_healthy(GPU, set())
        wait_until_ready(rig)
        rig.wait_for_healthy(GPU, set(rig.kubelet.devices(GPU)))
        assert mps.daemons() == before


def test_a_daemon_that_hangs_on_a_silent_connection_is_restarted(mps: RealMps) -> None:
    """NVIDIA's daemon waits for the first message of a connection, and does nothing else."""
    env = timing(mps_command=0.5, mps_quit=0.5, mps_exit=0.5)
    with mps.served(one_replica_each(4), env=env) as program:
        wait_until_ready(mps.rig)
        before = mps.daemons()
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
            silent.connect(str(mps.pipe / "control"))
            program.wait_for_code(Code.MPS_STARTED, times=2)
        assert mps.daemons() != before


def test_commands_of_others_never_make_a_daemon_look_dead(mps: RealMps) -> None:
    rig = mps.rig
    with mps.served(one_replica_each(4)) as program, advertised(rig, GPU) as plugin:
        programs = (program, plugin)
        before = [each.logged(Code.MPS_UNAVAILABLE) for each in programs]
        script = f"for i in $(seq 100); do echo get_server_list | {mps.control}; done"
        env = {"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe), "PATH": "/usr/bin:/bin"}
        others = [
            subprocess.Popen(["sh", "-c", script], env=env, stderr=subprocess.DEVNULL)
            for _ in range(2)
        ]
        for other in others:
            other.wait(PATIENCE)
        assert [each.logged(Code.MPS_UNAVAILABLE) for each in programs] == before
        assert program.logged(Code.MPS_DEFAULT_REJECTED) == 0
