"""Builds NVIDIA's own programs from the Go module proxy and caches them.

    peers = build_peers()            # minutes the first time, milliseconds afterwards
    peers.device_plugin              # a Path

    python tests/peers/build.py [program …]     # prints "name<TAB>path" lines

Each directory below `go/` pins one module. What lies in the cache is keyed by that pin, the flags
and the version of Go, and is put there complete: a program found there is the one asked for.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Peers:
    """Where the programs are; those that build_peers was not asked for may be absent."""

    device_plugin: Path
    mps_control_daemon: Path
    feature_discovery: Path
    ctk: Path
    container_runtime: Path
    cdi_hook: Path


class PeerBuildError(Exception):
    """A program could not be built; the message names the remedy."""


def build_peers(only: Collection[str] = (), say: Say | None = None) -> Peers:
    """Builds what the cache lacks: the programs named in `only`, or all of them."""
    unknown = sorted(set(only) - set(PROGRAMS))
    if unknown:
        raise PeerBuildError(
            f"unknown program {', '.join(unknown)}: choose from {', '.join(PROGRAMS)}"
        )
    toolchain = _toolchain()
    paths = {
        name: _program_path(module, name, toolchain)
        for module in MODULES
        for name in module.programs
    }
    wanted = [name for name in PROGRAMS if name in only or not only]
    if not all(paths[name].exists() for name in wanted):
        with exclusive(cache_directory("peers"), say or to_stderr):
            for name in wanted:
                if not paths[name].exists():  # another process may have built it meanwhile
                    _build(name, paths[name], say or to_stderr)
    return Peers(**{attribute: paths[name] for attribute, name in _ATTRIBUTES.items()})


@dataclass(frozen=True, slots=True)
class _Module:
    directory: str
    path: str
    programs: tuple[str, ...]

    @property
    def source(self) -> Path:
        return Path(__file__).parent / "go" / self.directory

    @property
    def version(self) -> str:
        pinned = re.search(rf"^\s*{re.escape(self.path)} (v\S+)", self._file("go.mod"), re.M)
        if pinned is None:
            raise PeerBuildError(f"{self.source / 'go.mod'} does not require {self.path}")
        return pinned[1]

    @property
    def fingerprint(self) -> str:
        return self._file("go.mod") + self._file("go.sum")

    def _file(self, name: str) -> str:
        return (self.source / name).read_text(encoding="utf-8")


# The toolkit comes first: it asks for the newer Go, and a Go that is too old should show at once.
MODULES = (
    _Module(
        "container-toolkit",
        "github.com/NVIDIA/nvidia-container-toolkit",
        ("nvidia-ctk", "nvidia-container-runtime", "nvidia-cdi-hook"),
    ),
    _Module(
        "device-plugin",
        "github.com/NVIDIA/k8s-device-plugin",
        ("nvidia-device-plugin", "mps-control-daemon", "gpu-feature-discovery"),
    ),
)
PROGRAMS = {name: module for module in MODULES for name in module.programs}
_ATTRIBUTES = {
    "device_plugin": "nvidia-device-plugin",
    "mps_control_daemon": "mps-control-daemon",
    "feature_discovery": "gpu-feature-discovery",
    "ctk": "nvidia-ctk",
    "container_runtime": "nvidia-container-runtime",
    "cdi_hook": "nvidia-cdi-hook",
}

# go-nvml leaves the driver's names undefined in the program; they may only be bound when called.
_LINK = "-s -w -extldflags=-Wl,-z,lazy"
_FIXED_ENVIRONMENT = {
    "CGO_ENABLED": "1",
    "CGO_CFLAGS": "-w",
    "GOFLAGS": "-mod=readonly",
    "GO111MODULE": "on",
    "GOWORK": "off",
}
# Leftovers of cross builds and experiments in the caller's shell would end up in the programs.
_DROPPED_ENVIRONMENT = (
    "GOOS", "GOARCH", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOROOT",
    "CGO_CPPFLAGS", "CGO_CXXFLAGS", "CGO_FFLAGS", "CGO_LDFLAGS",
)  # fmt: skip
NO_NETWORK = (
    "dial tcp", "no such host", "i/o timeout", "connection refused", "network is unreachable",
    "TLS handshake", "proxyconnect", "GOPROXY=off", "Forbidden", "Bad Gateway",
)  # fmt: skip


def _build(name: str, target: Path, say: Say) -> None:
    module = PROGRAMS[name]
    _require_compiler()
    say(f"building {name} {module.version} …")
    began = time.monotonic()
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=target.parent.parent) as scratch:
        built = Path(scratch) / name
        done = go(
            "build", "-trimpath", f"-ldflags={_link_flags(module)}", "-o", str(built),
            f"{module.path}/cmd/{name}", directory=module.source,
        )  # fmt: skip
        if done.returncode:
            raise PeerBuildError(_explain(name, module, done.stderr))
        built.rename(target)
    say(f"built {name} {module.version} in {time.monotonic() - began:.0f} s")


def _explain(name: str, module: _Module, output: str) -> str:
    tail = "\n".join(output.strip().splitlines()[-15:])
    if "go.mod requires go >=" in output:
        return _too_old(output)
    if any(sign in output for sign in NO_NETWORK):
        return (
            f"{name} needs {module.path} {module.version} from the Go module proxy, which cannot "
            f"be reached: check the network, or set GOPROXY to one that can be\n{tail}"
        )
    return f"{name} {module.version} does not build:\n{tail}"


def _link_flags(module: _Module) -> str:
    return f"{_LINK} -X {module.path}/internal/info.version={module.version}"


def _program_path(module: _Module, name: str, toolchain: str) -> Path:
    fixed = [f"{key}={value}" for key, value in sorted(_FIXED_ENVIRONMENT.items())]
    key = "\0".join([module.fingerprint, _link_flags(module), *fixed, toolchain])
    digest = hashlib.sha256(key.encode()).hexdigest()[:16]
    return cache_directory("peers") / digest / "bin" / name


def cache_directory(kind: str) -> Path:
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "gpuslice" / kind


def _toolchain() -> str:
    """The version of Go and its target, as go resolves them for the most demanding module."""
    if shutil.which("go") is None:
        raise PeerBuildError(
            "NVIDIA's programs are built with Go, but go is not on PATH: install Go "
            f"{_go_directive()} or newer"
        )
    done = go("env", "GOVERSION", "GOOS", "GOARCH", directory=MODULES[0].source)
    if done.returncode:
        raise PeerBuildError(_too_old(done.stderr))
    return done.stdout


def _too_old(output: str) -> str:
    return (
        f"Go {_go_directive()} or newer is needed to build NVIDIA's programs: install it, or "
        f"allow go to fetch it with GOTOOLCHAIN=auto\n{output.strip()}"
    )


def _go_directive() -> str:
    stated = re.search(r"^go (\S+)", MODULES[0].fingerprint, re.M)
    return stated[1] if stated else "1.26"


def _require_compiler() -> None:
    cc = shlex.split(go("env", "CC", directory=MODULES[0].source).stdout)
    if not cc or shutil.which(cc[0]) is None:
        raise PeerBuildError(
            f"NVIDIA's programs need a C compiler, but {' '.join(cc) or 'CC'!r} is not on PATH: "
            "install one (Debian: apt-get install gcc libc6-dev) or set CC"
        )


def go(
    *arguments: str, directory: Path, fixed: Mapping[str, str] = _FIXED_ENVIRONMENT
) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k not in _DROPPED_ENVIRONMENT}
    return subprocess.run(
        ["go", *arguments],
        cwd=directory,
        env=environment | dict(fixed) | {"PWD": str(directory)},
        capture_output=True,
        text=True,
        check=False,
    )


@contextmanager
def exclusive(directory: Path, say: Say) -> Iterator[None]:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another process that builds the same programs …")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _main(names: list[str]) -> int:
    try:
        peers = build_peers(names)
    except PeerBuildError as error:
        to_stderr(str(error))
        return 1
    for attribute, name in _ATTRIBUTES.items():
        if name in names or not names:
            print(name, getattr(peers, attribute), sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
