"""A GPU node: simulated driver, containerd, kubelet, MPS daemon and agent in own namespaces."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from gpuslice_sim.node import SimNode, create
from tests.cluster.build import Binaries
from tests.surroundings import direct, free_ports, neutral
from tests.timing import timing

from . import node_init, runs
from .client import RESOURCE
from .processes import Process
from .runs import Run
from .runtime import SOCKET, write_runtime
from .waiting import PATIENCE_SECONDS, eventually

MPS_PIPE = "/run/nvidia-mps"
_EXCLUSIVE_PROCESS = 3


@dataclass(frozen=True)
class NodeSpec:
    name: str
    profile: str = "t4x2"
    driver: int = 570
    agent: tuple[str, ...] = ("agent", "--mps-pipe", MPS_PIPE, "--memory-reserve=0")
    """Arguments of `gpuslice`; () for a node without agent."""
    mps: bool = True
    resource: str = RESOURCE
    """What the agent offers; the cluster is up once it does."""
    status_frequency: str = "200ms"
    """How often the kubelet updates the status. Its default is 10 s, for which tests would wait."""


class Mps(Process):
    """The node's MPS control daemon."""

    def command(self, text: str) -> str:
        """The daemon's answer, asked for with the control program itself."""
        done = subprocess.run(
            [*self._prefix(), self.argv[0]],
            env=self.env,
            input=f"{text}\n",
            capture_output=True,
            text=True,
            check=False,
            timeout=90,
        )
        if done.returncode:
            raise RuntimeError(f"{text}: {(done.stdout + done.stderr).strip()}")
        return done.stdout.strip()


class Node:
    def __init__(
        self,
        spec: NodeSpec,
        index: int,
        run: Run,
        binaries: Binaries,
        kubeconfig: Path,
    ) -> None:
        self.spec = spec
        self.name = spec.name
        self.directory = run.directory / spec.name
        self.cgroup = run.cgroup(spec.name)
        self.bridge = run.bridge(index)
        self.address = f"10.{run.subnet_octet}.{index}.1"
        self._binaries = binaries
        self._logs = run.logs
        for name in ("kubelet", "containerd", "pods", "containers", "gpuslice", "run", "mnt"):
            (self.directory / name).mkdir(parents=True)
        self.sim: SimNode = create(
            self.directory / "sim", spec.profile, driver=spec.driver, seed=index
        )
        if spec.mps:  # as NVIDIA advises: a process that misses MPS gets nothing
            for gpu in self.sim.gpus():
                self.sim.set({f"gpu.{gpu.index}.compute_mode": _EXCLUSIVE_PROCESS})
        self._forbid_device_changes()
        config = write_runtime(
            self.directory,
            binaries,
            bridge=self.bridge,
            subnet=f"10.{run.subnet_octet}.{index}.0/24",
            log=self._log("nvidia-container-runtime"),
        )
        self._make_network()
        self.init = Process(
            f"{self.name} init",
            [sys.executable, node_init.__file__, self.directory],
            env=dict(os.environ),
            log=self._log("init"),
        )
        self.containerd = self._process(
            "containerd", [binaries.containerd / "containerd", f"--config={config}"]
        )
        self.kubelet = self._process(
            "kubelet",
            [
                binaries.kubelet,
                f"--config={self._write_kubelet_config()}",
                f"--kubeconfig={kubeconfig}",
                f"--hostname-override={self.name}",
                f"--node-ip={self.address}",
            ],
        )
        self.mps = self.mps_daemon("mps", MPS_PIPE)
        self.agent = self._process(
            "agent",
            [Path(sys.executable).parent / "gpuslice", *spec.agent],
            env=self._agent_environment(),
        )

    @property
    def pod_resources_socket(self) -> Path:
        return self.directory / "kubelet/pod-resources/kubelet.sock"

    @property
    def device_plugins(self) -> Path:
        return self.directory / "kubelet/device-plugins"

    @property
    def processes(self) -> list[Process]:
        wanted = [self.init, self.containerd, self.kubelet]
        agent = bool(self.spec.agent) or self.agent.running
        return wanted + [self.mps] * self.spec.mps + [self.agent] * agent

    def init_pid(self) -> int:
        """The process whose namespaces are the node's."""
        return int((self.directory / "init.pid").read_text())

    def start_runtime(self) -> None:
        """What needs no API server, without waiting for it."""
        runs.make_cgroup(self.cgroup)
        (self.directory / "init.pid").unlink(missing_ok=True)
        self.init.start()
        eventually(self._init_is_up, f"{self.name} has its namespaces", explain=self.init.tail)
        self.containerd.start()
        if self.spec.mps:
            self.mps.start()

    def import_images(self, images: Sequence[Path]) -> None:
        self._wait_for_containerd()
        for image in images:
            self.ctr("images", "import", "--local", str(image))

    def ctr(self, *arguments: str) -> str:
        """containerd's own client, in the namespace of Kubernetes."""
        return self.run(
            [self._binaries.containerd / "ctr", "-a", SOCKET, "-n", "k8s.io", *arguments]
        )

    def start_kubelet(self) -> None:
        self._wait_for_containerd()
        self.kubelet.start()

    def start_agent(self) -> None:
        if self.spec.agent:
            self.agent.start()

    def run(self, argv: Sequence[str | Path], *, timeout: float = PATIENCE_SECONDS) -> str:
        """Runs a program on the node, as somebody logged in there would; returns its output."""
        enter = ["nsenter", "--target", str(self.init_pid()), "--mount", "--pid", "--"]
        done = subprocess.run(
            [*enter, *map(str, argv)],
            env=self.sim.env(),
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout,
        )
        if done.returncode:
            raise RuntimeError(f"{self.name}: {argv}: {(done.stdout + done.stderr).strip()}")
        return done.stdout

    def restart_agent(self, *arguments: str) -> None:
        """With other arguments of `gpuslice`; without any, with those of its specification."""
        self.agent.stop()
        self.agent.argv[1:] = arguments or self.spec.agent
        self.agent.start()

    def start_other_agent(
        self,
        program: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        binds: Mapping[str, Path] | None = None,
    ) -> None:
        """In place of the agent: another of our programs, with nothing but these settings.

        `binds` are what a container of it has mounted: path there -> directory of the node.
        """
        self.agent.stop()
        argv = [str(Path(sys.executable).parent / program), *arguments]
        self.agent.argv = self.sim.namespace_command(argv, binds) if binds else argv
        self.agent.env = self._agent_environment() | dict(environment or {})
        self.agent.start()

    def set_mig(self, gpu: int, layout: Sequence[str]) -> None:
        """Cuts a GPU anew while everything runs; an empty layout switches MIG off."""
        self.sim.faults.mig(gpu, layout)
        self._forbid_device_changes()

    def set_runtime_options(self, **options: bool) -> None:
        """Of NVIDIA's container runtime, which reads them for every container."""
        file = self.directory / "nvidia" / "config.toml"
        lines = file.read_text().splitlines()
        lines = [line for line in lines if not line.startswith("accept-")]
        words = [f"{name.replace('_', '-')} = {str(on).lower()}" for name, on in options.items()]
        file.write_text("\n".join([*words, *lines, ""]))

    def mps_daemon(self, name: str, pipe: str) -> Mps:
        """An MPS daemon with this pipe directory; not started yet."""
        return Mps(
            f"{self.name} {name}",
            [self.sim.bin / "nvidia-cuda-mps-control", "-f"],
            env={
                "CUDA_MPS_PIPE_DIRECTORY": pipe,
                "CUDA_MPS_LOG_DIRECTORY": str(self.directory / f"{name}-log"),
                "PATH": os.environ["PATH"],
            },
            log=self._log(name),
            namespace=self.init_pid,
        )

    def power_off(self) -> None:
        """Everything on the node ends at once, containers included, and /run is forgotten."""
        self.init.stop()  # returns when the last process of the pid namespace is gone
        for process in self.processes:
            process.kill()  # they are dead already; this collects their status
        runs.remove_cgroup(self.cgroup)
        for place in (self.directory / "run", self.directory / "sim" / "state" / "procs"):
            shutil.rmtree(place)
            place.mkdir()
        (self.directory / "sim" / "state" / "procs").chmod(0o1777)

    def boot_without_agent(self) -> None:
        self.start_runtime()
        self.start_kubelet()

    def reboot(self) -> None:
        self.power_off()
        self.boot_without_agent()
        self.start_agent()

    def remove(self) -> None:
        """What lies outside the node's directory."""
        self.power_off()
        runs.remove_bridge(self.bridge)

    def _init_is_up(self) -> bool:
        self.init.require()
        return (self.directory / "init.pid").exists()

    def _wait_for_containerd(self) -> None:
        def check() -> bool:
            self.containerd.require()
            return (self.directory / "run/containerd/containerd.sock").exists()

        eventually(check, f"{self.name}: containerd listens", explain=self.containerd.tail)

    def _process(
        self, name: str, argv: Sequence[str | Path], env: dict[str, str] | None = None
    ) -> Process:
        path = f"{self._binaries.containerd}:{self._binaries.runc.parent}:{os.environ['PATH']}"
        return Process(
            f"{self.name} {name}",
            argv,
            env=direct(os.environ) | {"PATH": path} if env is None else env,
            log=self._log(name),
            namespace=self.init_pid,
        )

    def _agent_environment(self) -> dict[str, str]:
        return self.sim.env(direct(neutral(os.environ))) | timing()

    def _log(self, name: str) -> Path:
        return self._logs / f"{self.name}-{name}.log"

    def _make_network(self) -> None:
        """The bridge's address is the node's; the CNI plugin finds the bridge in place."""
        runs.make_bridge(self.bridge, self.address)
        (self.directory / "resolv.conf").write_text(f"nameserver {self.address}\n")

    def _forbid_device_changes(self) -> None:
        """As with the module option NVreg_ModifyDeviceFiles=0. Otherwise NVIDIA's hook covers
        /proc/driver/nvidia/params in containers, whose own procfs lacks what no kernel provides."""
        params = self.sim.root / "proc/driver/nvidia/params"
        text = params.read_text()
        params.write_text(text.replace("ModifyDeviceFiles: 1", "ModifyDeviceFiles: 0"))

    def _write_kubelet_config(self) -> Path:
        port, healthz_port = free_ports(self.address, 2)
        config = kubelet_config(f"/{self.cgroup}", self.directory / "resolv.conf") | {
            "address": self.address,
            "port": port,
            "healthzBindAddress": self.address,
            "healthzPort": healthz_port,
            "clusterDNS": [self.address],
            "nodeStatusUpdateFrequency": self.spec.status_frequency,
        }
        path = self.directory / "kubelet.yaml"
        path.write_text(yaml.safe_dump(config))
        return path


def kubelet_config(cgroup_root: str, resolv_conf: Path) -> dict[str, object]:
    """Of any node, without what several nodes on one address would share."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        # Only this machine reaches the address.
        "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
        "authorization": {"mode": "AlwaysAllow"},
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "makeIPTablesUtilChains": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "1Mi"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "localStorageCapacityIsolation": False,
        "resolvConf": str(resolv_conf),
        # Tests wait until the status of the node changes (default: 10 s).
        "nodeStatusUpdateFrequency": "200ms",
        "nodeStatusReportFrequency": "10s",
    }
