"""A cluster that exists already, reached with a kubeconfig."""

from __future__ import annotations

import contextlib
import os
import secrets
from pathlib import Path
from tempfile import TemporaryDirectory
from types import TracebackType
from typing import Self

from tests.surroundings import SCRATCH

from .client import RESOURCE, Client
from .images import TEST_IMAGE
from .kube import Kube
from .processes import Process
from .waiting import eventually

# Not KUBECONFIG: a developer's own must not get pods by accident.
KUBECONFIG_VARIABLE = "GPUSLICE_E2E_KUBECONFIG"
IMAGE_VARIABLE = "GPUSLICE_E2E_IMAGE"
LABEL = {"app.kubernetes.io/managed-by": "gpuslice-e2e"}


class ExistingCluster(Client):
    """Whatever is made is made in a namespace of its own, which is removed in the end."""

    least_units = 6
    """What the scenarios may count on, on one GPU of `gpu_node`."""

    def __init__(self, kubeconfig: Path, *, kubectl: Path, image: str = TEST_IMAGE) -> None:
        self.namespace = f"gpuslice-e2e-{secrets.token_hex(3)}"
        self.image = image
        self.kubectl_program = kubectl
        self._kubeconfig = kubeconfig

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as steps:
            self._start(steps)
            self._steps = steps.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._steps.close()

    def _start(self, steps: contextlib.ExitStack) -> None:
        directory = Path(
            steps.enter_context(TemporaryDirectory(prefix="gpuslice-e2e-", dir=SCRATCH))
        )
        self._write_kubeconfig(directory)
        self.kubectl("get", "--raw", "/readyz")  # says best what is wrong with the credentials
        self._start_proxy(directory, steps)
        self.gpu_node = self._find_node()
        metadata = {"name": self.namespace, "labels": LABEL}
        self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        steps.callback(self._remove_namespace)
        self.wait_for_service_account()

    def _write_kubeconfig(self, directory: Path) -> None:
        """A copy with our namespace: --namespace would forbid objects that name another."""
        if not self._kubeconfig.is_file():
            raise FileNotFoundError(
                f"{KUBECONFIG_VARIABLE}={self._kubeconfig} is no file: name a kubeconfig"
            )
        self.kubectl_environment = {"KUBECONFIG": str(self._kubeconfig)}
        copy = directory / "kubeconfig"  # in a directory that only this user can open
        copy.write_text(self.kubectl("config", "view", "--raw", "--minify", "--flatten"))
        cache = directory / "kubectl-cache"
        self.kubectl_environment = {"KUBECONFIG": str(copy), "KUBECACHEDIR": str(cache)}
        self.kubectl("config", "set-context", "--current", f"--namespace={self.namespace}")

    def _start_proxy(self, directory: Path, steps: contextlib.ExitStack) -> None:
        """It knows every kind of credentials. A socket, as a port would lend them to everybody."""
        socket = directory / "proxy.sock"
        proxy = Process(
            "kubectl proxy",
            [self.kubectl_program, "proxy", f"--unix-socket={socket}"],
            env=dict(os.environ) | self.kubectl_environment,
            log=directory / "proxy.log",
        )
        proxy.start()
        steps.callback(proxy.stop)
        self.kube = Kube.through(socket)
        steps.callback(self.kube.close)

        def ready() -> bool:
            proxy.require()
            return self.kube.ready()

        eventually(ready, "the API server answers through kubectl proxy", explain=proxy.tail)

    def _find_node(self) -> str:
        offers = self.offers()
        name = max(offers, key=lambda node: offers[node], default="")
        if offers.get(name, 0) < self.least_units:
            raise LookupError(
                f"no node of this cluster has {self.least_units} {RESOURCE} allocatable "
                f"({offers or 'none has any'}): the agent must run there, see deploy/manifests"
            )
        return name

    def _remove_namespace(self) -> None:
        path = f"/api/v1/namespaces/{self.namespace}"
        self.kube.delete(path)
        eventually(lambda: self.kube.find(path) is None, f"{self.namespace} is gone")
