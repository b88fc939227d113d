"""The node under trouble: the agent, the MPS programs and the kubelet, restarted when they die."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuslice_sim.kubelet import Kubelet
from gpuslice_sim.mps.launch import MpsDaemon, is_running, kill
from gpuslice_sim.node import create
from gpuslice_sim.process import BackgroundProcess
from tests.node.mps_programs import EXCLUSIVE_PROCESS, children, running
from tests.node.rig import BIN, RESOURCE, Rig
from tests.surroundings import free_address
from tests.timing import timing

PROFILE = "v100x4"
GPU_MIB = 32768
SHARED = "nvidia.com/gpu.shared"
# By resource: how many devices it has, and how many on each GPU.
MEMORY_UNITS, REPLICAS = 32, 4
CAPACITY = {RESOURCE: 3 * MEMORY_UNITS, SHARED: REPLICAS}
GOOD = f"""\
version: v1
sharing:
  memory: {{devices: [0, 1, 2], advertise: all}}
  mps:
    resources: [{{name: nvidia.com/gpu, devices: [3], replicas: {REPLICAS}, rename: {SHARED}}}]
"""


@dataclass
class SoakNode:
    rig: Rig
    metrics_address: str
    agent: BackgroundProcess
    # Runs the MPS daemon of the replicas.
    mps_program: BackgroundProcess
    # The MPS daemon of the memory units, which the operator of the node runs.
    mps_daemon: MpsDaemon
    # How often a program was started again after trouble.
    restarts: int = 0

    @property
    def config(self) -> Path:
        return self.rig.directory / "config.yaml"

    def write_config(self, text: str | bytes) -> None:
        fresh = self.config.with_suffix(".new")
        fresh.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogatepass"))
        fresh.rename(self.config)

    def restart_dead(self) -> None:
        """As the kubelet does with containers."""
        if self.agent.returncode is not None:
            self.agent = _start_agent(self.rig, self.metrics_address)
            self.restarts += 1
        if self.mps_program.returncode is not None:
            self.mps_program = _start_mps_program(self.rig)
            self.restarts += 1

    def kill_agent(self) -> None:
        self.agent.kill()

    def kill_mps_program(self) -> None:
        """With the daemons that it runs, as when its container ends."""
        self.mps_program.kill()
        self.kill_replica_daemons()

    def kill_replica_daemons(self) -> None:
        for pid in running(self.rig.mps_root).values():
            kill(pid)

    def kill_mps_servers(self) -> None:
        """With their clients. The daemons start new ones."""
        for pid in (self.mps_daemon.pid, *running(self.rig.mps_root).values()):
            for child in children(pid):
                kill(child)

    def kill_mps_daemon(self) -> None:
        if is_running(self.mps_daemon.pid):
            self.mps_daemon.kill()

    def start_mps_daemon(self) -> None:
        if not is_running(self.mps_daemon.pid):
            self.mps_daemon.start()

    @property
    def replica_pipe(self) -> Path:
        return self.rig.mps_root / SHARED / "pipe"


@contextlib.contextmanager
def soak_node(directory: Path) -> Iterator[SoakNode]:
    sim = create(directory / "node", PROFILE, driver=570)
    # As the documentation tells the operator: a program that does not use MPS fails.
    sim.set({f"gpu.{index}.compute_mode": EXCLUSIVE_PROCESS for index in range(3)})
    kubelet = Kubelet(
        directory / "device-plugins", pod_resources=directory / "pod-resources" / "kubelet.sock"
    )
    kubelet.start()
    rig = Rig(sim, kubelet, directory)
    address = free_address()
    (directory / "config.yaml").write_text(GOOD)
    with contextlib.ExitStack() as steps:
        steps.callback(kubelet.stop)
        # GPU 3 has a daemon of its own.
        gpus = ",".join(sim.gpu(index).uuid for index in range(3))
        env = {"CUDA_VISIBLE_DEVICES": gpus}
        daemon = MpsDaemon(sim, rig.pipe, directory / "mps-log", env=env)
        daemon.start()
        steps.callback(_quietly(daemon.kill))
        node = SoakNode(rig, address, _start_agent(rig, address), _start_mps_program(rig), daemon)
        steps.callback(node.kill_replica_daemons)
        steps.callback(lambda: node.mps_program.kill())
        steps.callback(lambda: node.agent.kill())
        yield node
        node.agent.send(signal.SIGTERM)
        node.mps_program.send(signal.SIGTERM)
        node.agent.wait()
        node.mps_program.wait()


def _start_agent(rig: Rig, metrics_address: str) -> BackgroundProcess:
    argv = [str(BIN / "gpuslice"), "agent", f"--config-file={rig.directory / 'config.yaml'}"]
    argv += [f"--mps-root={rig.mps_root}", f"--mps-pipe={rig.pipe}", "--memory-reserve=0"]
    argv += [f"--metrics-address={metrics_address}"]
    # A driver that does not answer is noticed soon.
    env = timing(driver_answer=1.0)
    return rig.run(argv, name="agent", env=env, places={"/mps": rig.mps_root})


def _start_mps_program(rig: Rig) -> BackgroundProcess:
    argv = [str(BIN / "mps-control-daemon"), f"--config-file={rig.directory / 'config.yaml'}"]
    return rig.run(argv, name="mps", env=timing(driver_answer=1.0), places={"/mps": rig.mps_root})


def _quietly(action: Callable[[], object]) -> Callable[[], None]:
    def run() -> None:
        with contextlib.suppress(OSError):
            action()

    return run
