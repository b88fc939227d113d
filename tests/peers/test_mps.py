"""NVIDIA's MPS control daemon drives the simulated one, and the limits reach a CUDA program."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuslice.kubelet.api import deviceplugin_pb2 as api
from gpuslice_sim.mps.launch import kill, running_process
from gpuslice_sim.node import SimNode
from gpuslice_sim.process import BackgroundProcess

from . import facts
from .agreement.pair import OURS, ListeningKubelet, Side, running
from .build import Peers
from .conftest import MakeNode, ShareGpus, StartPlugin

RESOURCE = "nvidia.com/gpu"
MIB = 1 << 20
PATIENCE = 90.0
DEFAULT, EXCLUSIVE_PROCESS = 0, 3
CONFIG = """
version: v1
sharing:
  mps:
    resources: [{{name: nvidia.com/gpu, replicas: {replicas}}}]
"""


@dataclass
class Shared:
    """A node whose GPUs NVIDIA's daemon shares; `place` is what it calls /mps."""

    node: SimNode
    place: Path
    config: Path
    scratch: Path
    daemon: BackgroundProcess

    @property
    def pipe(self) -> Path:
        return self.place / RESOURCE / "pipe"

    def commands(self) -> list[str]:
        """What the simulated control daemon was told; it must have obeyed."""
        record = self.node.directory / "state" / "mps" / "commands.log"
        rows = [line.split("\t", 2) for line in record.read_text().splitlines()]
        assert {status for _, status, _ in rows} == {"0"}
        return [command for _, _, command in rows]

    def wait_until_ready(self) -> None:
        self.daemon.wait_for_output("Starting log tailer", timeout=PATIENCE)
        deadline = time.monotonic() + PATIENCE
        while not (self.place / ".ready").exists():
            assert time.monotonic() < deadline, self.daemon.output()
            time.sleep(0.02)

    def compute_modes(self) -> set[int]:
        return {gpu.compute_mode for gpu in self.node.gpus()}

    def cuda(self, env: dict[str, str], binds: dict[str, Path], *arguments: str) -> dict[str, Any]:
        """A CUDA program in a container with this environment and these mounts."""
        place = self.scratch / "container"
        place.mkdir(exist_ok=True)
        variables = [f"{name}={value}" for name, value in env.items()]
        argv = ["env", "-i", *variables, str(self.node.bin / "simcuda"), *arguments]
        done = subprocess.run(
            self.node.namespace_command(argv, binds),
            env=self.node.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        assert done.stdout, done.stderr
        report: dict[str, Any] = json.loads(done.stdout)
        return report


ShareNode = Callable[..., Shared]


@pytest.fixture
def share_node(peers: Peers, make_node: MakeNode, scratch: Path) -> Iterator[ShareNode]:
    """share_node("t4x2", replicas=4): starts NVIDIA's daemon, which `wait_until_ready` awaits."""
    with ExitStack() as stack:

        def share(profile: str, *, replicas: int) -> Shared:
            node = make_node(profile)
            place = scratch / "mps"
            place.mkdir()
            config = scratch / "config.yaml"
            config.write_text(CONFIG.format(replicas=replicas))
            argv = [str(peers.mps_control_daemon), f"--config-file={config}"]
            daemon = BackgroundProcess(
                node.namespace_command(argv, {"/mps": place}),
                env=node.env(),
                log=scratch / "mps.log",
            )
            stack.enter_context(daemon)
            shared = Shared(node, place, config, scratch, daemon)
            daemons.append(shared)
            return shared

        daemons: list[Shared] = []
        yield share
        for shared in daemons:
            end(shared)


@pytest.mark.parametrize(("profile", "replicas"), [("t4x2", 4), ("t4x2", 3), ("a100-80x8", 10)])
def test_the_daemon_takes_the_gpus_and_sets_the_limits(
    share_node: ShareNode, profile: str, replicas: int
) -> None:
    shared = share_node(profile, replicas=replicas)
    shared.wait_until_ready()
    cards = facts.CARDS[profile]
    *limits, threads = shared.commands()
    assert sorted(limits) == [
        f"set_default_device_pinned_mem_limit {index} {card.memory_mib // replicas}M"
        for index, card in enumerate(cards)
    ]
    assert threads == f"set_default_active_thread_percentage {100 // replicas}"
    assert shared.compute_modes() == {EXCLUSIVE_PROCESS}
    assert shared.daemon.stop() == 0
    assert shared.commands()[-1] == "quit"
    assert shared.compute_modes() == {DEFAULT}


@pytest.mark.parametrize(("profile", "most"), [("t4x2", 48), ("v100x4", 16)])
def test_the_daemon_refuses_more_replicas_than_the_architecture_can_serve(
    share_node: ShareNode, profile: str, most: int
) -> None:
    shared = share_node(profile, replicas=most + 1)
    shared.daemon.wait_for_output(f"maximum allowed replicas exceeded: {most + 1} > {most}")
    assert shared.daemon.wait() == 1
    assert shared.compute_modes() == {DEFAULT}


def test_a_program_at_the_daemons_pipe_gets_its_share_of_every_gpu(share_node: ShareNode) -> None:
    shared = share_node("t4x2", replicas=3)
    shared.wait_until_ready()
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
    report = shared.cuda(pipe, {"/mps": shared.place}, "info")
    assert report["mps"]
    assert [device["uuid"] for device in report["devices"]] == [g.uuid for g in shared.node.gpus()]
    for device in report["devices"]:
        assert device["limit_bytes"] == 5120 * MIB
        assert device["thread_percentage"] == 33
        assert device["sms"] == 12  # 33 % of 40 are 13.2; multiprocessors come in pairs


def test_a_program_past_the_daemon_finds_the_gpus_taken(share_node: ShareNode) -> None:
    shared = share_node("t4x2", replicas=4)
    shared.wait_until_ready()
    pipe = {"CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe"}
    assert shared.cuda(pipe, {"/mps": shared.place}, "info")["error"] is None  # starts the server
    assert shared.cuda({}, {}, "alloc", "1MiB")["error"] == "CUDA_ERROR_DEVICE_UNAVAILABLE"


@pytest.mark.parametrize(("profile", "replicas"), [("t4x2", 4), ("a100-40x8", 10)])
def test_what_the_plugin_answers_gives_a_program_its_slice_of_every_gpu(
    share_node: ShareNode, start_plugin: StartPlugin, profile: str, replicas: int
) -> None:
    shared = share_node(profile, replicas=replicas)
    shared.wait_until_ready()
    plugin = start_plugin(
        shared.node,
        f"--config-file={shared.config}",
        f"--mps-root={shared.place}",
        binds={"/mps": shared.place},
    )
    plugin.process.wait_for_output("MPS daemon is healthy")
    gpus = shared.node.gpus()
    offered = [f"{gpu.uuid}::{replica}" for gpu in gpus for replica in range(replicas)]
    assert plugin.devices() == dict.fromkeys(offered, "Healthy")

    gpu = gpus[1]
    answer = plugin.allocate(f"{gpu.uuid}::2")
    assert dict(answer.envs) == {
        "NVIDIA_VISIBLE_DEVICES": gpu.uuid,
        "CUDA_MPS_PIPE_DIRECTORY": "/mps/nvidia.com/gpu/pipe",
    }
    assert mounts(answer) == {
        "/mps/nvidia.com/gpu/pipe": shared.pipe,
        "/dev/shm": shared.place / "shm",
    }
    (shared.place / "shm").mkdir()  # in a pod, an init container mounts a tmpfs here
    # One slice was allocated, but the daemon offers the node, and nothing narrows it: its users
    # report that the container sees and uses every GPU (NVIDIA/k8s-device-plugin issue 1299).
    seen = shared.cuda(dict(answer.envs), mounts(answer), "info")["devices"]
    assert [device["uuid"] for device in seen] == [gpu.uuid for gpu in gpus]
    for ordinal in (0, 1):
        report = shared.cuda(dict(answer.envs), mounts(answer), "fill", "--device", str(ordinal))
        [device] = report["devices"]
        limit = facts.CARDS[profile][ordinal].memory_mib // replicas * MIB
        assert report["mps"]
        assert device["uuid"] == gpus[ordinal].uuid
        assert device["limit_bytes"] == limit
        assert device["thread_percentage"] == 100 // replicas
        assert 0 < report["allocated_bytes"] <= limit

    narrowed = {**answer.envs, "CUDA_VISIBLE_DEVICES": gpu.uuid}
    [device] = shared.cuda(narrowed, mounts(answer), "info")["devices"]
    assert device["uuid"] == gpu.uuid


def test_the_plugin_does_not_register_without_the_daemon(
    share_node: ShareNode, start_plugin: StartPlugin
) -> None:
    shared = share_node("t4x2", replicas=4)
    shared.wait_until_ready()
    assert shared.daemon.stop() == 0
    plugin = start_plugin(
        shared.node,
        f"--config-file={shared.config}",
        f"--mps-root={shared.place}",
        binds={"/mps": shared.place},
    )
    plugin.process.wait_for_output("error checking MPS daemon health")
    assert plugin.kubelet.registrations == 0


@pytest.mark.parametrize("count", [1, 2, 4])
def test_with_nvidias_daemon_merged_replicas_of_our_plugin_stay_at_one_share(
    make_node: MakeNode, share_gpus: ShareGpus, scratch: Path, count: int
) -> None:
    """The reason for a daemon of our own: NVIDIA's has 1/n as its default, and clients of MPS can
    only tighten a default. Our answer names the larger share, and nothing comes of it."""
    node = make_node("t4x2")
    config = scratch / "merged.yaml"
    config.write_text(
        "sharing: {mps: {failRequestsGreaterThanOne: false, "
        "resources: [{name: nvidia.com/gpu, replicas: 4}]}}"
    )
    _, place = share_gpus(node, config)
    flags = [f"--config-file={config}", f"--mps-root={place}"]
    (place / RESOURCE / "shm").mkdir()
    with (
        ListeningKubelet(scratch / "o") as kubelet,
        running(OURS, node, kubelet.directory, flags, {}, {"/mps": place}) as process,
    ):
        side = Side("our plugin", kubelet, process)
        side.wait_for({RESOURCE})
        uuid = node.gpus()[0].uuid
        answers = side.allocate(RESOURCE, [[f"{uuid}::{number}" for number in range(count)]])
        assert isinstance(answers, list)
        [answer] = answers
        assert answer.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] == f"{uuid}={count * 3840}M"
        argv = [str(node.bin / "simcuda"), "fill"]
        done = subprocess.run(
            node.namespace_command(argv, mounts(answer)),
            env=dict(answer.envs),
            capture_output=True,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        report = json.loads(done.stdout)
        assert report["total_bytes"] == 3840 * MIB
        assert report["devices"][0]["sms"] == 10


def mounts(answer: api.ContainerAllocateResponse) -> dict[str, Path]:
    return {mount.container_path: Path(mount.host_path) for mount in answer.mounts}


def end(shared: Shared) -> None:
    """NVIDIA's daemon quits the one it started; when it cannot, that one must not stay behind."""
    if shared.daemon.returncode is None and shared.daemon.stop() == 0:
        return
    pid = running_process(shared.pipe / "nvidia-cuda-mps-control.pid")
    if pid is not None:
        kill(pid)
