"""What the machine that runs the tests must not decide."""

from __future__ import annotations

import secrets
import shutil
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path

from gpuslice.config.agent_options import OPTIONS
from gpuslice.labels.label_options import LABELS_OPTIONS

# Short, for the paths of sockets: TMPDIR may be anywhere.
SCRATCH = Path("/tmp")

_SETTINGS = {name for option in (*OPTIONS, *LABELS_OPTIONS) for name in option.variables}
# Of GPU images, of pods in which tests may run, and of an agent.
_FOREIGN = ("CUDA_", "NVIDIA_", "KUBERNETES_", "GPUSLICE_")
# These are meant for the tests themselves.
_OURS = ("GPUSLICE_E2E_", "GPUSLICE_K8S_", "GPUSLICE_PEERS_")
_TERMINAL = {"COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE"}
_PROXIES = {"http_proxy", "https_proxy", "all_proxy"}


def neutral(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what the caller's shell says about agents, GPUs, clusters and terminals."""
    return {name: value for name, value in environment.items() if not _is_foreign(name)}


def direct(environment: Mapping[str, str]) -> dict[str, str]:
    """Without proxies, for programs that talk to this machine only."""
    return {name: value for name, value in environment.items() if name.lower() not in _PROXIES}


def open_directly(url: str, *, timeout: float = 60.0) -> tuple[int, str]:
    """Status and text of a page of this machine, whatever proxy the environment names."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(url, timeout=timeout) as answer:
            return int(answer.status), answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def own_host() -> str:
    """A loopback address that nobody else listens on: ports of it stay free once they are."""
    return "127." + ".".join(str(1 + secrets.randbelow(254)) for _ in range(3))


def free_ports(host: str, count: int) -> list[int]:
    """Ports that nobody uses now; all are held until all are found, so they differ."""
    sockets = [socket.create_server((host, 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def free_address() -> str:
    """As host:port."""
    host = own_host()
    [port] = free_ports(host, 1)
    return f"{host}:{port}"


def remove_directory(path: Path, *, timeout: float = 60.0) -> None:
    """Also while a process that is just ending still writes there."""
    deadline = time.monotonic() + timeout
    while path.exists():
        shutil.rmtree(path, ignore_errors=time.monotonic() < deadline)


def _is_foreign(name: str) -> bool:
    if name.startswith(_OURS):
        return False
    return name in _SETTINGS | _TERMINAL or name.startswith(_FOREIGN)
