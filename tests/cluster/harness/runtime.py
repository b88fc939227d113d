"""containerd of a node, with NVIDIA's container runtime as its handler `nvidia`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.cluster.build import Binaries

from .images import PAUSE_IMAGE

SOCKET = "/run/containerd/containerd.sock"

_CONTAINERD = """\
version = 3
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0

[grpc]
address = "{socket}"

[plugins."io.containerd.internal.v1.opt"]
path = "/var/lib/containerd/opt"

[plugins."io.containerd.nri.v1.nri"]
disable = true

[plugins."io.containerd.cri.v1.images"]
snapshotter = "{snapshotter}"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{pause}"

[plugins."io.containerd.cri.v1.runtime"]
enable_cdi = true
cdi_spec_dirs = ["{node}/cdi", "/var/run/cdi"]
# Lowering it takes CAP_SYS_RESOURCE, which containers and small machines often lack.
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{cni}"]
conf_dir = "{node}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd]
default_runtime_name = "runc"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{runc}"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
BinaryName = "{node}/nvidia/runtime"
"""

# The shim passes nothing but containerd's environment on, so the runtime's is set here.
_NVIDIA_RUNTIME = """\
#!/bin/sh
export LD_LIBRARY_PATH={libraries}
export NVIDIA_CTK_CONFIG_FILE_PATH={node}/nvidia/config.toml
export PATH={runc_directory}:{hook_directory}:$PATH
exec {runtime} "$@"
"""

_NVIDIA_CONFIG = """\
disable-require = true

[nvidia-container-cli]
root = "{driver_root}"

[nvidia-container-runtime]
mode = "jit-cdi"
runtimes = ["{runc}"]
log-level = "info"
debug = "{log}"

[nvidia-container-runtime.modes.cdi]
spec-dirs = ["{node}/cdi", "/var/run/cdi"]

[nvidia-ctk]
path = "{hook}"
"""


def write_runtime(
    node: Path,
    binaries: Binaries,
    *,
    bridge: str,
    subnet: str,
    log: Path,
    driver_root: Path | None = None,
) -> Path:
    """Writes all configuration below the node's directory; returns that of containerd.

    The driver is the node's simulated one, or one that is installed at `driver_root`.
    """
    libraries = node / "sim" / "lib" if driver_root is None else ""
    driver_root = driver_root or node / "sim" / "root"
    for name in ("cdi", "cni", "nvidia"):
        (node / name).mkdir(exist_ok=True)
    config = node / "containerd.toml"
    config.write_text(
        _CONTAINERD.format(
            socket=SOCKET,
            snapshotter=_snapshotter(node),
            pause=PAUSE_IMAGE,
            node=node,
            cni=binaries.cni_plugins,
            runc=binaries.runc,
        )
    )
    (node / "cni" / "10-bridge.conflist").write_text(json.dumps(_network(bridge, subnet)))
    runtime = node / "nvidia" / "runtime"
    runtime.write_text(
        _NVIDIA_RUNTIME.format(
            node=node,
            libraries=libraries,
            runc_directory=binaries.runc.parent,
            hook_directory=binaries.peers.cdi_hook.parent,
            runtime=binaries.peers.container_runtime,
        )
    )
    runtime.chmod(0o755)
    (node / "nvidia" / "config.toml").write_text(
        _NVIDIA_CONFIG.format(
            node=node,
            driver_root=driver_root,
            runc=binaries.runc,
            log=log,
            hook=binaries.peers.cdi_hook,
        )
    )
    return config


def _network(bridge: str, subnet: str) -> dict[str, object]:
    """Without masquerading, so iptables is not needed; the node is the gateway."""
    ranges = [[{"subnet": subnet}]]
    ipam = {"type": "host-local", "ranges": ranges, "dataDir": "/run/cni-addresses"}
    plugin = {"type": "bridge", "bridge": bridge, "isDefaultGateway": True, "ipam": ipam}
    return {"cniVersion": "1.0.0", "name": "gpuslice", "plugins": [plugin]}


def _snapshotter(node: Path) -> str:
    """Copying works everywhere; overlays are faster, but not on top of overlays."""
    known = Path("/proc/filesystems").read_text().split()
    here = subprocess.run(["stat", "-f", "-c", "%T", node], capture_output=True, check=True)
    return "overlayfs" if "overlay" in known and here.stdout != b"overlayfs\n" else "native"
