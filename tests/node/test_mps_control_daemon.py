"""`mps-control-daemon` and the agent: each resource that is shared by MPS has its daemon."""

from __future__ import annotations

import os
import signal
import subprocess
from functools import partial
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.mps.launch import is_running, wait_until_gone
from tests.surroundings import free_address

from .conftest import MakeRig
from .mps_programs import (
    DEFAULT,
    EXCLUSIVE_PROCESS,
    MIB,
    PATIENCE,
    admitted,
    advertised,
    bare,
    client,
    compute_modes,
    daemons,
    gpus_of,
    has_limit,
    one_replica_each,
    quarters,
    served,
    wait_until_ready,
)
from .rig import BIN, GPU, Rig, eventually, needs_root
from .test_node_config import get

pytestmark = [needs_root, pytest.mark.usefixtures("no_daemon_stays")]


@pytest.mark.parametrize("driver", [535, 570], ids=["ordinal-keys", "uuid-keys"])
def test_merged_replicas_are_one_larger_share(make_rig: MakeRig, driver: int) -> None:
    rig = make_rig("t4x2", driver=driver)
    with served(rig, quarters()), advertised(rig, GPU):
        for count, memory_mib, sms in ((1, 3840, 10), (2, 7680, 20), (4, 15360, 40)):
            for gpu in rig.node.gpus():
                answer = rig.allocate(GPU, *(f"{gpu.uuid}::{n}" for n in range(count)))
                filled = rig.contained(answer, "fill")
                [device] = filled["devices"]
                assert filled["warnings"] == []
                assert (device["uuid"], device["limit_bytes"]) == (gpu.uuid, memory_mib * MIB)
                assert device["sms"] == sms
                assert filled["error"] == "CUDA_ERROR_OUT_OF_MEMORY"
                if count < 4:  # the server uses some memory of a whole GPU
                    assert filled["total_bytes"] == memory_mib * MIB


def test_clients_of_several_users_are_served_at_once(rig: Rig) -> None:
    with served(rig, quarters()), advertised(rig, GPU):
        rig.directory.chmod(0o755)
        with client(rig, user=1000) as one, client(rig, user=2000) as other:
            assert one.ready()["mps"]
            assert other.ready()["mps"]


def test_each_resource_has_its_own_daemon(make_rig: MakeRig) -> None:
    rig = make_rig("mixed")
    models = {gpu.name: gpu.uuid for gpu in rig.node.gpus()}
    one, other = list(models)[:2]
    text = f"""
resources:
  gpus:
    - {{pattern: "{one}", name: one}}
sharing:
  mps:
    failRequestsGreaterThanOne: false
    resources:
      - {{name: one, replicas: 4, rename: one.limited}}
      - {{name: gpu, devices: ["{models[other]}"], replicas: 2, rename: gpu.mine}}
"""
    limited, mine = "nvidia.com/one.limited", "nvidia.com/gpu.mine"
    with served(rig, text), advertised(rig, limited, mine):
        running = daemons(rig)
        assert sorted(running) == sorted([limited, mine])
        assert gpus_of(running[mine]) == [models[other]]
        for resource, share in ((limited, 4), (mine, 2)):
            pod, uuid = admitted(rig, resource, 1, resource.rpartition(".")[2])
            [device] = rig.contained(rig.kubelet.start_container(pod, "main"), "info")["devices"]
            whole = rig.node.gpu(uuid).memory_total_bytes // MIB
            assert device["limit_bytes"] == whole // share * MIB


def test_gpus_that_are_not_shared_are_not_changed(rig: Rig) -> None:
    with served(rig, quarters(more=", devices: [0]")):
        wait_until_ready(rig)
        assert gpus_of(daemons(rig)[GPU]) == [rig.node.gpus()[0].uuid]
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS, DEFAULT]


def test_without_the_program_the_agent_names_it_and_the_pipe_directory(rig: Rig) -> None:
    flags = (f"--mps-root={rig.mps_root}", rig.config(quarters()))
    with rig.plugin(*flags, places={"/mps": rig.mps_root}) as plugin:
        rig.kubelet.wait_for(GPU)
        [line] = plugin.wait_for_code(Code.MPS_UNAVAILABLE, "run mps-control-daemon on this node")
        assert f"<mps-root>/{GPU}/pipe on the host" in line


# Files and environment that charts and other programs rely on


def test_files_have_the_names_that_other_programs_expect_and_are_removed_at_the_end(
    rig: Rig,
) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        place = rig.mps_root / GPU
        uuids = [gpu.uuid for gpu in rig.node.gpus()]
        assert (place / ".started").read_text().split() == uuids
        assert (place / "pipe" / "control").is_socket()
        assert (place / "log" / "control.log").exists()
        assert compute_modes(rig) == [EXCLUSIVE_PROCESS] * 2
        daemon = daemons(rig)[GPU]
        variables = Path(f"/proc/{daemon}/environ").read_bytes().decode().split("\0")
        given = {v.partition("=")[0] for v in variables if v} - {"GPUSLICE_SIM_NODE", "PWD"}
        assert given >= {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}
        assert not given & {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "KUBELET_SOCKET"}

        assert program.stop(PATIENCE) == 0
        assert not is_running(daemon)
        assert compute_modes(rig) == [DEFAULT] * 2
        assert not (rig.mps_root / ".ready").exists()
        assert not (place / ".started").exists()
        assert "Traceback" not in program.output()


@pytest.mark.parametrize("driver", [535, 570])
def test_a_client_that_removes_its_limits_is_limited_to_one_replica(
    make_rig: MakeRig, driver: int
) -> None:
    rig = make_rig("mixed", driver=driver)
    text = one_replica_each(4).replace("resources", "reserve: 1Gi, resources", 1)
    with served(rig, text), advertised(rig, GPU):
        visible = gpus_of(daemons(rig)[GPU])
        assert len({rig.node.gpu(uuid).memory_total_bytes for uuid in visible}) > 1
        for index, gpu in enumerate(rig.node.gpus()):
            if gpu.uuid not in visible:
                continue
            # Exactly what a container with its own limits has.
            answer = rig.allocate(GPU, f"{gpu.uuid}::0")
            [limited] = rig.contained(answer, "info")["devices"]
            device = bare(rig, index).device
            assert device["limit_bytes"] == (gpu.memory_total_bytes // MIB - 1024) // 4 * MIB
            assert device["limit_bytes"] == limited["limit_bytes"]
            assert device["sms"] == limited["sms"]
        killed = daemons(rig)[GPU]
        os.kill(killed, signal.SIGKILL)
        wait_until_gone(killed)
        eventually(lambda: daemons(rig).get(GPU, killed) != killed, "a new daemon")
        wait_until_ready(rig)
        assert bare(rig).device["limit_bytes"] is not None


def test_the_defaults_of_a_running_daemon_follow_the_size_of_a_replica(rig: Rig) -> None:
    with served(rig, one_replica_each(4)):
        wait_until_ready(rig)
        before = daemons(rig)
        with client(rig) as held:
            held.ready()
            for text, memory_mib, sms in (
                (one_replica_each(2), 7680, 20),
                (one_replica_each(3), 5120, 12),
                (quarters(), 15360, 40),
            ):
                rig.config(text)
                limit = memory_mib * MIB
                eventually(partial(has_limit, rig, limit), text)
                assert bare(rig, 1).device["sms"] == sms
            assert is_running(held.pid)
        assert daemons(rig) == before


def test_if_replicas_can_be_merged_the_daemon_has_no_default_limits(rig: Rig) -> None:
    with served(rig, quarters()) as program:
        wait_until_ready(rig)
        assert program.stop(PATIENCE) == 0
    record = rig.node.directory / "state" / "mps" / "commands.log"
    commands = {line.split("\t")[2].split()[0] for line in record.read_text().splitlines()}
    assert commands == {"get_default_active_thread_percentage", "get_server_list", "quit"}


def test_without_limits_of_the_daemon_those_of_the_container_are_the_only_ones(rig: Rig) -> None:
    def text(limits: str) -> str:
        resources = "[{name: gpu, replicas: 4}]"
        return f"sharing: {{mps: {{daemonLimits: {limits}, resources: {resources}}}}}"

    gpu = rig.node.gpus()[0].uuid
    with served(rig, text("none")), advertised(rig, GPU):
        assert bare(rig).device["limit_bytes"] is None
        assert bare(rig).device["sms"] == 40
        [device] = rig.contained(rig.allocate(GPU, f"{gpu}::0"), "info")["devices"]
        assert (device["limit_bytes"], device["sms"]) == (3840 * MIB, 10)
        # The switch needs no restart, in either direction.
        before = daemons(rig)
        for limits, memory_mib, sms in (("replica", 3840, 10), ("none", 15360, 40)):
            rig.config(text(limits))
            eventually(partial(has_limit, rig, memory_mib * MIB), limits)
            assert bare(rig).device["sms"] == sms
        assert daemons(rig) == before


def test_shared_memory_is_mounted_once_and_stays_mounted(rig: Rig) -> None:
    command = f"{BIN / 'mps-control-daemon'} mount-shm"
    script = f"""
        {command} && touch /mps/shm/in-use && {command} && ls /mps/shm &&
        df -k --output=size /mps/shm | tail -1 && grep /mps/shm /proc/self/mountinfo
    """
    argv = ["sh", "-c", script]
    done = subprocess.run(
        rig.node.namespace_command(argv, {"/mps": rig.mps_root}),
        env=rig.env(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    listing, size_kib, mount = done.stdout.splitlines()
    assert listing == "in-use"
    memory_kib = int(Path("/proc/meminfo").read_text().split()[1])
    assert abs(int(size_kib) - memory_kib // 2) <= 4  # whole pages
    assert " - tmpfs shm " in mount
    assert all(option in mount for option in ("nosuid", "nodev", "noexec"))
    assert "already mounted" in done.stderr


def test_the_program_answers_probes(make_rig: MakeRig) -> None:
    rig, address = make_rig("t4x2"), free_address()
    with served(rig, quarters(), f"--metrics-address={address}"):
        wait_until_ready(rig)
        assert get(address, "/healthz") == (200, "ok\n")
        assert get(address, "/readyz")[0] == 200
        rig.config("sharing: [")
        eventually(lambda: get(address, "/readyz")[0] == 503, "not ready by the wrong file")
        assert get(address, "/healthz")[0] == 200
