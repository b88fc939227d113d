"""A cluster whose nodes are pods of another one.

with NestedCluster(outer, ["inner-a"], images=[...]) as inner:
    outer.create(inner.node_pod("inner-a", gpus=2))
    inner.wait_for_node("inner-a")
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

import gpuslice_sim
from deploy.image import image_name, read_project
from gpuslice_sim.node import PLACE_IN_CONTAINERS
from tests.peers.build import cache_directory

from . import runs
from .client import Client
from .cluster import RUNTIME_CLASS, Cluster
from .control_plane import ControlPlane
from .kube import Object
from .node import kubelet_config
from .runtime import SOCKET, write_runtime
from .waiting import eventually

SAMPLE = Path(__file__).parents[3] / "deploy" / "manifests" / "samples" / "nested" / "node.yaml"
# The number of the interface with the inner API server; those of nodes count from 0.
_API_SERVER = 200
# runc needs it, and our image has no use for it.
_LIBSECCOMP = "libseccomp.so.2"
_APPLETS = "/run/applets"

# Before the command of the sample: what an image made for nodes has anyway, and what keeps the
# inner kubelet from the settings of this machine.
_PREPARE = f"""\
set -eu
busybox mkdir -p {_APPLETS} /run/sysctl
busybox --install -s {_APPLETS}
keep() {{
    echo "$2" > "/run/sysctl/${{1##*/}}"
    mount --bind "/run/sysctl/${{1##*/}}" "/proc/sys/$1"
}}
keep vm/overcommit_memory 1
keep vm/panic_on_oom 0
keep kernel/panic 10
keep kernel/panic_on_oops 1
keep kernel/keys/root_maxkeys 1000000
keep kernel/keys/root_maxbytes 25000000
rm -rf /run/cni-addresses
(
    for image in $IMAGES; do
        until ctr -a {SOCKET} -n k8s.io images import --local "$image"; do sleep 0.2; done
    done
) &
exec "$@"
"""


class NestedCluster(Client):
    """Its control plane runs on this machine, where pods of the outer cluster reach it."""

    def __init__(self, outer: Cluster, nodes: Sequence[str], *, images: Sequence[Path]) -> None:
        """`images` are those that every node imports, besides those of the scenarios."""
        self._outer = outer
        self._images = [*outer.images, *images]
        self._bridge = outer.run.bridge(_API_SERVER)
        self._directory = outer.run.directory / "nested"
        self._directory.mkdir()
        logs = outer.run.logs / "nested"
        logs.mkdir()
        address = f"10.{outer.run.subnet_octet}.{_API_SERVER}.1"
        runs.make_bridge(self._bridge, address)
        self._plane = ControlPlane(
            self._directory / "control-plane", logs, outer.binaries, address=address
        )
        self._kubeconfigs = {
            name: self._plane.credentials.add_user(f"system:node:{name}", "system:nodes")
            for name in nodes
        }
        self.kube = self._plane.kube
        self.gpu_node = nodes[0]
        self.kubectl_program = outer.binaries.kubectl
        cache = self._directory / "kubectl-cache"
        self.kubectl_environment = {
            "KUBECONFIG": str(self._plane.admin),
            "KUBECACHEDIR": str(cache),
        }

    def __enter__(self) -> Self:
        self._plane.start_api()
        self._plane.wait_for_api()
        self._plane.start_controllers()
        self.create(RUNTIME_CLASS)
        self.wait_for_service_account()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._plane.kube.close()
        self._plane.stop()
        runs.remove_bridge(self._bridge)

    def node_pod(self, name: str, gpus: int) -> Object:
        """The sample pod, with our image and with the programs of the harness in it."""
        directory = self._configure(name)
        pod: Object = copy.deepcopy(yaml.safe_load(SAMPLE.read_text()))
        pod["metadata"] = {"name": name}
        [container] = pod["spec"]["containers"]
        container["image"] = image_name(read_project())
        container["command"] = ["sh", "-c", _PREPARE, "sh", *container["command"]]
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
        binaries = self._outer.binaries
        path = [_APPLETS, binaries.containerd, binaries.kubernetes, binaries.runc.parent]
        variables = {
            "PATH": ":".join([*map(str, path), "/usr/sbin", "/usr/bin", "/sbin", "/bin"]),
            "IMAGES": " ".join(map(str, self._images)),
        }
        container["env"] += [{"name": key, "value": value} for key, value in variables.items()]
        pod["spec"]["volumes"] = [
            volume for volume in pod["spec"]["volumes"] if volume["name"] != "config"
        ]
        self._mount(pod, "config", directory)
        library = next(Path("/usr/lib").glob(f"*-linux-gnu/{_LIBSECCOMP}"))
        same_path = [
            directory,
            library,
            Path(PLACE_IN_CONTAINERS),
            Path(gpuslice_sim.__file__).parent,
            cache_directory("cluster"),
            cache_directory("peers"),
            *{image.parent for image in self._images},
        ]
        for number, place in enumerate(same_path):
            volume = f"machine-{number}"
            container["volumeMounts"].append(
                {"name": volume, "mountPath": str(place), "readOnly": place != directory}
            )
            self._mount(pod, volume, place)
        return pod

    def wait_for_node(self, name: str) -> None:
        def ready() -> bool:
            node = self.kube.find(f"/api/v1/nodes/{name}")
            conditions = node["status"].get("conditions", []) if node else []
            return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

        eventually(ready, f"{name} is Ready", explain=lambda: self._explain(name))

    def wait_for_amount(self, node: str, amount: int, resource: str) -> None:
        eventually(
            lambda: self.amount(node, resource=resource) == amount,
            f"{node} has {amount} {resource}",
            explain=lambda: self.kubectl("get", "pods", "-A", "-o", "wide"),
        )

    def forget(self, *nodes: str) -> None:
        """Nodes whose pods are gone."""
        for name in nodes:
            self.kube.delete(f"/api/v1/nodes/{name}")

    def _explain(self, name: str) -> str:
        status: Any = self._outer.pod(name)["status"]
        try:
            return f"{yaml.safe_dump(status)}\n{self._outer.logs(name, 'node')[-3000:]}"
        except Exception as error:  # noqa: BLE001 (it is a report about a failure)
            return f"{yaml.safe_dump(status)}\n{error}"

    def _configure(self, name: str) -> Path:
        """The configuration of a node, in a directory of its own."""
        directory = self._directory / name
        directory.mkdir()
        write_runtime(
            directory,
            self._outer.binaries,
            bridge="inner0",
            subnet="10.88.0.0/24",
            log=directory / "nvidia-container-runtime.log",
            driver_root=Path("/"),
        )
        (directory / "resolv.conf").write_text("nameserver 10.88.0.1\n")
        config = kubelet_config("/", directory / "resolv.conf")
        (directory / "kubelet.yaml").write_text(yaml.safe_dump(config))
        kubeconfig = yaml.safe_load(self._kubeconfigs[name].read_text())
        [cluster] = kubeconfig["clusters"]
        certificate = directory / "apiserver.crt"
        certificate.write_bytes(self._plane.credentials.certificate.read_bytes())
        cluster["cluster"]["certificate-authority"] = str(certificate)
        (directory / "kubeconfig").write_text(yaml.safe_dump(kubeconfig))
        return directory

    @staticmethod
    def _mount(pod: Object, name: str, place: Path) -> None:
        pod["spec"]["volumes"].append({"name": name, "hostPath": {"path": str(place)}})
