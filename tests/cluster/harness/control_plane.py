"""etcd, API server, scheduler and controller manager.

Nothing stands between pods and services here: the API server itself listens on the address of the
service `kubernetes`, the first of its subnet.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from ipaddress import ip_interface
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.build import Binaries
from tests.surroundings import direct, free_ports, own_host

from .credentials import Credentials
from .kube import Kube
from .processes import Process
from .waiting import eventually


class ControlPlane:
    """Started in two steps, so that nodes can prepare while the API server comes up."""

    def __init__(
        self,
        directory: Path,
        logs: Path,
        binaries: Binaries,
        *,
        address: str,
        extenders: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._directory = directory
        self._logs = logs
        self._binaries = binaries
        self._extenders = list(extenders)
        directory.mkdir()
        self._address = address
        self._host = own_host()
        self._etcd_port, self._peer_port = free_ports(self._host, 2)
        self.credentials = Credentials(directory / "pki", address)
        self.admin = self.credentials.add_user("admin", "system:masters")
        # Its many controllers would each need a service account of their own.
        self._manager = self.credentials.add_user(
            "system:kube-controller-manager", "system:masters"
        )
        self._scheduler = self.credentials.add_user("system:kube-scheduler")
        self.kube = Kube.with_token(
            self.credentials.server,
            self.credentials.token_of(self.admin),
            self.credentials.certificate,
        )
        self.etcd = self._process("etcd", binaries.etcd, self._etcd_flags())
        self.apiserver = self._kubernetes("kube-apiserver", self._apiserver_flags())
        self.scheduler = self._kubernetes("kube-scheduler", self._scheduler_flags())
        self.manager = self._kubernetes("kube-controller-manager", self._manager_flags())

    @property
    def processes(self) -> list[Process]:
        return [self.etcd, self.apiserver, self.scheduler, self.manager]

    def start_api(self) -> None:
        self.etcd.start()
        self.apiserver.start()

    def wait_for_api(self) -> None:
        def check() -> bool:
            self.etcd.require()
            self.apiserver.require()
            return self.kube.ready()

        eventually(check, "the API server is ready", explain=self.apiserver.tail)

    def start_controllers(self) -> None:
        self.scheduler.start()
        self.manager.start()

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.kill()  # nothing of theirs outlives the run

    def _kubernetes(self, name: str, flags: Sequence[str]) -> Process:
        return self._process(name, self._binaries.kubernetes / name, flags)

    def _process(self, name: str, program: Path, flags: Sequence[str]) -> Process:
        log = self._logs / f"{name}.log"
        return Process(name, [program, *flags], env=direct(os.environ), log=log)

    def _etcd_flags(self) -> list[str]:
        client, peer = (
            f"http://{self._host}:{port}" for port in (self._etcd_port, self._peer_port)
        )
        return [
            f"--data-dir={self._directory / 'etcd'}",
            f"--listen-client-urls={client}",
            f"--advertise-client-urls={client}",
            f"--listen-peer-urls={peer}",
            f"--initial-advertise-peer-urls={peer}",
            f"--initial-cluster=default={peer}",
            "--unsafe-no-fsync",
        ]

    def _apiserver_flags(self) -> list[str]:
        keys = self.credentials
        return [
            f"--etcd-servers=http://{self._host}:{self._etcd_port}",
            f"--bind-address={self._address}",
            "--secure-port=443",
            f"--tls-cert-file={keys.certificate}",
            f"--tls-private-key-file={keys.key}",
            f"--token-auth-file={keys.tokens}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged=true",
            "--service-account-issuer=https://kubernetes.default.svc",
            f"--service-account-key-file={keys.service_account_public_key}",
            f"--service-account-signing-key-file={keys.service_account_key}",
            f"--service-cluster-ip-range={ip_interface(f'{self._address}/24').network}",
            "--kubelet-preferred-address-types=InternalIP",
            "--endpoint-reconciler-type=none",  # its address is the service's own
        ]

    def _scheduler_flags(self) -> list[str]:
        config = self._directory / "scheduler.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "apiVersion": "kubescheduler.config.k8s.io/v1",
                    "kind": "KubeSchedulerConfiguration",
                    "clientConnection": {"kubeconfig": str(self._scheduler)},
                    "leaderElection": {"leaderElect": False},
                    "extenders": self._extenders,
                }
            )
        )
        return [f"--config={config}", "--secure-port=0"]

    def _manager_flags(self) -> list[str]:
        return [
            f"--kubeconfig={self._manager}",
            "--leader-elect=false",
            "--secure-port=0",
            f"--flex-volume-plugin-dir={self._directory / 'volume-plugins'}",
            f"--root-ca-file={self.credentials.certificate}",
            f"--service-account-private-key-file={self.credentials.service_account_key}",
        ]
