"""A simulated node: creates its directory, and gives typed access to it."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from gpuslice_sim import driver_root, profiles
from gpuslice_sim.errors import SimError
from gpuslice_sim.faults import Faults
from gpuslice_sim.mig import MigProfile
from gpuslice_sim.mps import server_program
from gpuslice_sim.state import State, Value, render

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

DEFAULT_DRIVER = 570
# The path of the node in containers that have only parts of the driver; the same as in locate.h.
PLACE_IN_CONTAINERS = "/run/gpuslice-sim"


@dataclass(frozen=True)
class SimMig:
    """A MIG device."""

    uuid: str
    gi: int
    ci: int
    profile: MigProfile


@dataclass(frozen=True)
class SimGpu:
    """The current state of a GPU. `index` is the number of its record."""

    index: int
    uuid: str
    name: str
    model: str
    minor: int
    pci: str
    numa: int
    cc: str
    sms: int
    memory_total_bytes: int
    memory_reserved_bytes: int
    compute_mode: int
    present: bool
    lost: bool
    mig: tuple[SimMig, ...]


class SimNode:
    """The simulated node in a directory."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory.absolute()
        self.state = State(self.directory)

    @classmethod
    def open(cls, directory: Path) -> SimNode:
        return cls(directory)

    @property
    def lib(self) -> Path:
        return self.directory / "lib"

    @property
    def bin(self) -> Path:
        return self.directory / "bin"

    @property
    def root(self) -> Path:
        return self.directory / "root"

    @property
    def faults(self) -> Faults:
        return Faults(self)

    def gpus(self) -> list[SimGpu]:
        values = self.state.values()
        return [_gpu(values, index) for index in range(int(values["gpu.count"]))]

    def gpu(self, which: int | str) -> SimGpu:
        """By index, UUID, or a prefix of a UUID (with or without `GPU-`)."""
        gpus = self.gpus()
        if str(which).isdigit() and len(str(which)) < 4:
            if int(which) < len(gpus):
                return gpus[int(which)]
            raise SimError(f"GPU {which} does not exist: use 0 to {len(gpus) - 1}")
        wanted = str(which)
        found = [
            gpu
            for gpu in gpus
            if gpu.uuid.startswith(wanted) or gpu.uuid.removeprefix("GPU-").startswith(wanted)
        ]
        if len(found) == 1 and wanted:
            return found[0]
        known = ", ".join(gpu.uuid for gpu in gpus)
        problem = "matches several GPUs" if found else "matches no GPU"
        raise SimError(f"{wanted!r} {problem}: use an index or one of {known}")

    def env(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment in which programs find the driver of this node."""
        env = dict(os.environ if base is None else base)
        for name, first in (("LD_LIBRARY_PATH", self.lib), ("PATH", self.bin)):
            env[name] = os.pathsep.join(filter(None, (str(first), env.get(name))))
        return env

    def set(self, values: Mapping[str, Value]) -> None:
        """Changes keys of the state directly, if `faults` has no method for it."""
        self.state.override(values)

    def add_library(self, name: str) -> None:
        """Adds an empty library (`libdxcore.so`), for programs that only check that it exists."""
        shutil.copy(_native() / "libcuda.so", self.lib / name)

    def refresh_root(self) -> None:
        """Updates /proc, /sys and /dev of the driver root from the state."""
        driver_root.write_kernel_view(self.root, self.state.values())

    def namespace_command(
        self, argv: Sequence[str], binds: Mapping[str, Path] | None = None
    ) -> list[str]:
        """A command that runs `argv` with the /dev, /proc and /sys files of this node. Needs root.

        `binds`: path -> directory of the machine that `argv` sees at this path.
        """
        pairs = [f"{target}={source}" for target, source in (binds or {}).items()]
        module = [sys.executable, "-I", "-m", "gpuslice_sim.namespace"]
        return [*module, str(self.directory), *pairs, "--", *argv]


def create(
    directory: Path,
    profile: str,
    *,
    driver: int = DEFAULT_DRIVER,
    seed: int = 0,
    force: bool = False,
) -> SimNode:
    """Creates a node. Equal arguments give equal GPUs. `force` replaces an existing node."""
    keys = profiles.node_keys(profiles.find_profile(profile), profiles.find_driver(driver), seed)
    directory = directory.absolute()
    _prepare_directory(directory, force=force)
    for name in ("lib", "bin", "root", "state/procs"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    (directory / "state" / "procs").chmod(0o1777)
    for name in ("overrides", "events", "lock"):
        (directory / "state" / name).touch()
        (directory / "state" / name).chmod(0o666)
    version = str(keys["driver.version"])
    driver_root.install_library(_native(), directory / "lib", "libnvidia-ml", version)
    _write_programs(directory)
    driver_root.install(_native(), directory / "root", version, directory / "bin")
    # Last: the node exists if this file does.
    fresh = directory / "state" / ".node"
    fresh.write_text(render(keys))
    fresh.rename(directory / "state" / "node")
    node = SimNode(directory)
    node.refresh_root()
    return node


def _prepare_directory(directory: Path, *, force: bool) -> None:
    if not directory.exists() or (directory.is_dir() and not any(directory.iterdir())):
        return
    if not (directory / "state" / "node").is_file():
        raise SimError(f"{directory} exists and is not a simulated node: use an empty directory")
    if not force:
        raise SimError(f"{directory} already contains a node: use --force, or another directory")
    for name in ("state", "lib", "libexec", "bin", "root"):
        shutil.rmtree(directory / name, ignore_errors=True)


def _native() -> Path:
    return Path(str(files("gpuslice_sim") / "_native"))


def _write_programs(directory: Path) -> None:
    (directory / "libexec").mkdir()
    _write_script(directory, directory / "bin" / "nvidia-smi", "gpuslice_sim.smi")
    _write_script(directory, directory / "libexec" / "mps", "gpuslice_sim.mps")
    shutil.copy(_native() / "mps-control", directory / "bin" / "nvidia-cuda-mps-control")
    shutil.copy(_native() / "simcuda", directory / "bin" / "simcuda")
    server = directory / "bin" / server_program.NAME
    server.write_text(server_program.PLACEHOLDER)
    server.chmod(0o755)


def _write_script(directory: Path, path: Path, module: str) -> None:
    # Callers start these programs with an empty environment, so the paths are fixed here. In a
    # container, the directory and the interpreter have other paths.
    path.write_text(
        "#!/bin/sh\n"
        f"GPUSLICE_SIM_NODE={shlex.quote(str(directory))}\n"
        f'[ -e "$GPUSLICE_SIM_NODE" ] || GPUSLICE_SIM_NODE={PLACE_IN_CONTAINERS}\n'
        "export GPUSLICE_SIM_NODE\n"
        f"python={shlex.quote(sys.executable)}\n"
        '[ -x "$python" ] || python=/usr/bin/python3\n'
        f'exec "$python" -I -m {module} "$@"\n'
    )
    path.chmod(0o755)


def _gpu(values: Mapping[str, str], index: int) -> SimGpu:
    def text(key: str, default: str = "") -> str:
        return values.get(f"gpu.{index}.{key}", default)

    return SimGpu(
        index=index,
        uuid=text("uuid"),
        name=text("name"),
        model=text("model"),
        minor=int(text("minor", "0")),
        pci=text("pci"),
        numa=int(text("numa", "-1")),
        cc=text("cc"),
        sms=int(text("sms", "0")),
        memory_total_bytes=int(text("memory.total", "0")),
        memory_reserved_bytes=int(text("memory.reserved", "0")),
        compute_mode=int(text("compute_mode", "0")),
        present=text("present", "1") != "0",
        lost=text("lost", "0") != "0",
        mig=tuple(_mig(values, f"gpu.{index}.mig", j) for j in range(_mig_count(values, index))),
    )


def _mig_count(values: Mapping[str, str], index: int) -> int:
    enabled = values.get(f"gpu.{index}.mig.mode") == "1"
    return int(values.get(f"gpu.{index}.mig.count", "0")) if enabled else 0


def _mig(values: Mapping[str, str], prefix: str, number: int) -> SimMig:
    profile = int(values[f"{prefix}.{number}.profile"])
    return SimMig(
        uuid=values[f"{prefix}.{number}.uuid"],
        gi=int(values[f"{prefix}.{number}.gi"]),
        ci=int(values[f"{prefix}.{number}.ci"]),
        profile=MigProfile.parse(profile, values[f"{prefix}.profile.{profile}"]),
    )
