"""Gets the programs of a real cluster and caches them.

    binaries = get_binaries()        # minutes the first time, milliseconds afterwards
    binaries.kubelet                 # a Path

    python -m tests.cluster.build    # prints where they are

Kubernetes and containerd are built from the Go module proxy (the pins are in `binaries/`), etcd,
runc, the CNI plugins and busybox are Debian's, NVIDIA's runtime comes from `tests.peers.build`.
GPUSLICE_K8S_VERSION chooses among the pinned versions of Kubernetes.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.peers.build import (
    NO_NETWORK,
    PeerBuildError,
    Peers,
    Say,
    build_peers,
    cache_directory,
    exclusive,
    go,
    to_stderr,
)

DEFAULT_KUBERNETES = "1.37.1"
VERSION_VARIABLE = "GPUSLICE_K8S_VERSION"


class ClusterBuildError(Exception):
    """A program cannot be had; the message names the remedy."""


@dataclass(frozen=True, slots=True)
class Binaries:
    """Where the programs are. `kubernetes` and `containerd` are directories of programs."""

    kubernetes_version: str
    kubernetes: Path
    containerd: Path
    debian: Path
    peers: Peers

    @property
    def kubelet(self) -> Path:
        return self.kubernetes / "kubelet"

    @property
    def kubectl(self) -> Path:
        return self.kubernetes / "kubectl"

    @property
    def etcd(self) -> Path:
        return self.debian / "usr/bin/etcd"

    @property
    def runc(self) -> Path:
        return self.debian / "usr/sbin/runc"

    @property
    def busybox(self) -> Path:
        return self.debian / "bin/busybox"

    @property
    def cni_plugins(self) -> Path:
        return self.debian / "usr/lib/cni"


def get_binaries(kubernetes: str | None = None, say: Say | None = None) -> Binaries:
    """Builds and downloads what the cache lacks."""
    version = kubernetes or os.environ.get(VERSION_VARIABLE) or DEFAULT_KUBERNETES
    say = say or to_stderr
    modules = (_containerd_module(), _kubernetes_module(version))
    directories = [module.target() for module in modules]
    debian = _debian_target()
    # Whatever the machine lacks shows before the long build: tools, disk, then a C compiler.
    if not debian.exists():
        _check_package_tools()
    if not all(directory.exists() for directory in directories):
        _check_disk()
    peers = _build_peers(say)
    if not all(directory.exists() for directory in (*directories, debian)):
        with exclusive(cache_directory("cluster"), say):
            if not debian.exists():
                _download(debian, say)
            for module in modules:
                if not module.target().exists():  # another process may have built it meanwhile
                    _build(module, say)
    return Binaries(version, directories[1], directories[0], debian, peers)


def pinned_versions() -> list[str]:
    """The versions of Kubernetes that GPUSLICE_K8S_VERSION may name."""
    return sorted(path.name.removeprefix("kubernetes-") for path in _SOURCE.glob("kubernetes-*"))


@dataclass(frozen=True, slots=True)
class _Module:
    name: str
    source: Path
    packages: tuple[str, ...]
    link_flags: str
    tags: str = ""

    def target(self) -> Path:
        pins = [(self.source / name).read_text() for name in ("go.mod", "go.sum")]
        key = "\0".join([*pins, *self.arguments(), *_FIXED_ENVIRONMENT.values(), _toolchain()])
        digest = hashlib.sha256(key.encode()).hexdigest()[:16]
        return cache_directory("cluster") / f"{self.name}-{digest}" / "bin"

    def arguments(self) -> list[str]:
        return ["-trimpath", f"-tags={self.tags}", f"-ldflags=-s -w {self.link_flags}"]


_SOURCE = Path(__file__).parent / "binaries"
_FIXED_ENVIRONMENT = {
    "CGO_ENABLED": "0",
    "GOFLAGS": "-mod=readonly",
    "GO111MODULE": "on",
    "GOWORK": "off",
}
_DEBIAN_PACKAGES = ("etcd-server", "runc", "containernetworking-plugins", "busybox-static")
_BUILD_DISK_BYTES = 6 << 30


def _kubernetes_module(version: str) -> _Module:
    if version not in pinned_versions():
        known = ", ".join(pinned_versions())
        raise ClusterBuildError(f"{VERSION_VARIABLE}={version} is not pinned: choose from {known}")
    # The kubelet takes longest and asks most of the machine: what fails should fail early.
    programs = ("kubelet", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")
    return _Module(
        f"kubernetes-{version}",
        _SOURCE / f"kubernetes-{version}",
        tuple(f"k8s.io/kubernetes/cmd/{name}" for name in programs),
        f"-X k8s.io/component-base/version.gitVersion=v{version}",
    )


def _containerd_module() -> _Module:
    source = _SOURCE / "containerd"
    path = "github.com/containerd/containerd/v2"
    pinned = re.search(rf"^\s*(?:require )?{path} (v\S+)", (source / "go.mod").read_text(), re.M)
    if pinned is None:
        raise ClusterBuildError(f"{source / 'go.mod'} does not require {path}")
    return _Module(
        f"containerd-{pinned[1].removeprefix('v')}",
        source,
        tuple(f"{path}/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
        f"-X {path}/version.Version={pinned[1]}",
        "no_btrfs,no_devmapper,no_zfs",
    )


def _build(module: _Module, say: Say) -> None:
    target = module.target()
    target.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as scratch:
        built = Path(scratch) / "bin"
        built.mkdir()
        for number, package in enumerate(module.packages, start=1):
            name = package.rpartition("/")[2]
            say(f"building {name} ({module.name}, {number} of {len(module.packages)}) …")
            started = time.monotonic()
            done = go(
                "build", *module.arguments(), "-o", str(built / name), package,
                directory=module.source, fixed=_FIXED_ENVIRONMENT,
            )  # fmt: skip
            if done.returncode:
                raise ClusterBuildError(_explain(name, module, done.stderr))
            say(f"built {name} in {time.monotonic() - started:.0f} s")
        built.rename(target)
    say(f"built {module.name} in {time.monotonic() - began:.0f} s")


def _explain(name: str, module: _Module, output: str) -> str:
    tail = "\n".join(output.strip().splitlines()[-15:])
    if "no space left on device" in output:
        return f"{name} does not build, the disk is full: free about 6 GB\n{tail}"
    if any(sign in output for sign in NO_NETWORK):
        return (
            f"{name} needs {module.name} from the Go module proxy, which cannot be reached: "
            f"check the network, or set GOPROXY to one that can be\n{tail}"
        )
    return f"{name} ({module.name}) does not build:\n{tail}"


def _toolchain() -> str:
    if shutil.which("go") is None:
        raise ClusterBuildError(
            "Kubernetes is built with Go, but go is not on PATH: install Go 1.26 or newer from "
            "https://go.dev/dl/"
        )
    done = go(
        "env", "GOVERSION", "GOOS", "GOARCH",
        directory=_SOURCE / "containerd", fixed=_FIXED_ENVIRONMENT,
    )  # fmt: skip
    if done.returncode:
        raise ClusterBuildError(
            "Go 1.26 or newer is needed to build Kubernetes: install it from https://go.dev/dl/ or "
            f"allow go to fetch it with GOTOOLCHAIN=auto\n{done.stderr.strip()}"
        )
    return done.stdout


def _check_disk() -> None:
    found = go(
        "env", "GOCACHE", "GOMODCACHE", directory=_SOURCE / "containerd", fixed=_FIXED_ENVIRONMENT
    )
    for place in (str(cache_directory("cluster")), *found.stdout.split()):
        Path(place).mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(place).free
        if free < _BUILD_DISK_BYTES:
            raise ClusterBuildError(
                f"{place} has {free >> 20} MiB free and building Kubernetes takes about 6 GB: free "
                "some, or move the caches with XDG_CACHE_HOME, GOCACHE and GOMODCACHE"
            )


def _debian_target() -> Path:
    release = Path("/etc/os-release")
    text = release.read_text() if release.exists() else ""
    codename = re.search(r"^VERSION_CODENAME=(\w+)", text, re.M)
    key = "\0".join([*_DEBIAN_PACKAGES, os.uname().machine, codename[1] if codename else ""])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory("cluster") / f"debian-{digest}"


def _build_peers(say: Say) -> Peers:
    try:
        return build_peers(["nvidia-container-runtime", "nvidia-cdi-hook", "nvidia-ctk"], say)
    except PeerBuildError as error:
        raise ClusterBuildError(str(error)) from error


def _check_package_tools() -> None:
    missing = [name for name in ("apt-get", "dpkg") if shutil.which(name) is None]
    if missing:
        raise ClusterBuildError(
            f"{', '.join(_DEBIAN_PACKAGES)} are unpacked from Debian packages, but "
            f"{' and '.join(missing)} is not on PATH: run this on Debian or Ubuntu"
        )


def _download(target: Path, say: Say) -> None:
    say(f"downloading {', '.join(_DEBIAN_PACKAGES)} …")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent) as scratch:
        _run(["apt-get", "download", "-q", *_DEBIAN_PACKAGES], Path(scratch))
        unpacked = Path(scratch) / "unpacked"
        for package in sorted(Path(scratch).glob("*.deb")):
            _run(["dpkg", "-x", str(package), str(unpacked)], Path(scratch))
        unpacked.rename(target)


def _run(argv: Sequence[str], directory: Path) -> None:
    done = subprocess.run(argv, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ClusterBuildError(
            f"{' '.join(argv)} failed: refresh the package lists with apt-get update, and check "
            f"the network\n{done.stderr.strip()}"
        )


def _main() -> int:
    try:
        binaries = get_binaries()
    except ClusterBuildError as error:
        to_stderr(str(error))
        return 1
    for name in ("kubernetes", "containerd", "debian"):
        print(name, getattr(binaries, name), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(_main())
