"""GPU models and node profiles, and the state keys of nodes."""

from __future__ import annotations

import hashlib
import tomllib
import uuid
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from gpuslice_sim.errors import SimError
from gpuslice_sim.mig import MigProfile, layout_keys, profile_keys

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpuslice_sim.state import Value

MIB = 1 << 20
_AMPERE = 7
_NAMESPACE = uuid.UUID("5f0c0f3e-6d7b-5d0a-9a40-0c6f5c1f9b21")


@dataclass(frozen=True)
class Driver:
    branch: int
    version: str
    cuda: int

    @property
    def nvml(self) -> str:
        return f"{self.cuda // 1000}.{self.version}"

    @property
    def max_contexts(self) -> int:
        """MPS serves more contexts per GPU from CUDA 13.1 on."""
        return 60 if self.cuda >= 13010 else 48


DRIVERS = {
    driver.branch: driver
    for driver in (
        Driver(535, "535.247.01", 12020),
        Driver(550, "550.163.01", 12040),
        Driver(555, "555.58.02", 12050),
        Driver(570, "570.124.06", 12080),
        Driver(590, "590.48.01", 13010),
        Driver(615, "615.71.09", 13040),
    )
}


@dataclass(frozen=True)
class Model:
    """A GPU model."""

    key: str
    name: str
    arch: int
    cc: str
    brand: int
    sms: int
    cores_per_sm: int
    memory: Mapping[str, int]
    pci: Mapping[str, int]
    power: Mapping[str, int]
    clock: Mapping[str, int]
    part_number: str
    vbios: str
    nvlink: Mapping[str, int] | None = None
    fabric: bool = False
    min_branch: int = 0
    mig: Mapping[str, MigProfile] | None = None


@dataclass(frozen=True)
class Slot:
    """A GPU of a node profile."""

    model: Model
    bus: int
    numa: int
    minor: int
    switch: int
    mig: tuple[str, ...]

    @property
    def bus_id(self) -> str:
        return f"00000000:{self.bus:02X}:00.0"


@dataclass(frozen=True)
class Profile:
    """A node profile."""

    name: str
    about: str
    cpus_per_socket: int
    slots: tuple[Slot, ...]
    nvlink: str
    switches: tuple[int, ...]


@cache
def models() -> Mapping[str, Model]:
    return {key: _model(key, table) for key, table in _load("models.toml").items()}


@cache
def profiles() -> Mapping[str, Profile]:
    return {name: _profile(name, table) for name, table in _load("nodes.toml").items()}


def find_model(key: str) -> Model:
    if key not in models():
        raise SimError(f"GPU model {key!r} is unknown: choose one of {', '.join(models())}")
    return models()[key]


def find_profile(name: str) -> Profile:
    if name not in profiles():
        raise SimError(f"profile {name!r} is unknown: choose one of {', '.join(profiles())}")
    return profiles()[name]


def find_driver(branch: int) -> Driver:
    if branch not in DRIVERS:
        known = ", ".join(map(str, DRIVERS))
        raise SimError(f"driver {branch} is unknown: choose one of {known}")
    return DRIVERS[branch]


def check_supported(model: Model, branch: int) -> None:
    if branch < model.min_branch:
        raise SimError(
            f"driver {branch} does not support {model.name}: use driver {model.min_branch} or newer"
        )


def node_keys(profile: Profile, driver: Driver, seed: int) -> dict[str, Value]:
    """The content of state/node."""
    keys: dict[str, Value] = {
        "node.profile": profile.name,
        "node.seed": seed,
        "driver.branch": driver.branch,
        "driver.version": driver.version,
        "driver.nvml": driver.nvml,
        "driver.cuda": driver.cuda,
        "cuda.context_bytes": 300 * MIB,
        "mps.server_bytes": 32 * MIB,
        "mps.max_contexts": driver.max_contexts,
        "numa.count": 2,
        "gpu.count": len(profile.slots),
    }
    for socket in range(2):
        first = socket * profile.cpus_per_socket
        keys[f"numa.{socket}.cpus"] = f"{first}-{first + profile.cpus_per_socket - 1}"
    for index, slot in enumerate(profile.slots):
        check_supported(slot.model, driver.branch)
        keys |= gpu_keys(index, slot, f"{profile.name}/{seed}/{index}")
        keys |= _links(index, profile)
    return keys


def gpu_keys(index: int, slot: Slot, origin: str) -> dict[str, Value]:
    """The record of a GPU. UUID and serial number depend on `origin` only."""
    model = slot.model
    gpu_uuid = f"GPU-{uuid.uuid5(_NAMESPACE, origin)}"
    record: dict[str, Value] = {
        "uuid": gpu_uuid,
        "name": model.name,
        "model": model.key,
        "minor": slot.minor,
        "serial": _serial(origin),
        "arch": model.arch,
        "cc": model.cc,
        "brand": model.brand,
        "sms": model.sms,
        "cores_per_sm": model.cores_per_sm,
        "sms_per_tpc": 2,
        "memory.total": model.memory["total"] * MIB,
        "memory.reserved": model.memory["reserved"] * MIB,
        "memory.bar1": model.memory["bar1"] * MIB,
        "memory.bus_width": model.memory["bus_width"],
        "pci": slot.bus_id,
        "pci.device_id": f"{model.pci['device_id']:#010x}",
        "pci.subsystem_id": f"{model.pci['subsystem_id']:#010x}",
        "pcie.gen": model.pci["gen"],
        "pcie.width": model.pci["width"],
        "pcie.switch": slot.switch,
        "pcie.root": slot.bus,
        "numa": slot.numa,
        "module_id": index + 1,
        "vbios": model.vbios,
        "part_number": model.part_number,
        "inforom": "G500.0202.00.02",
        "present": 1,
        "lost": 0,
        "compute_mode": 0,
        "persistence": 1,
        "recovery_action": 0,
    }
    record |= _sensors(model) | _memory_health(model)
    if model.nvlink:
        record |= {f"nvlink.{key}": model.nvlink[key] for key in ("version", "speed")}
        record["nvlink.count"] = model.nvlink["links"]
    if model.fabric:
        record |= {"fabric.state": 3, "fabric.status": 0, "fabric.clique": 0}
    record |= profile_keys(model.mig) if model.mig else {"mig.capable": 0}
    if model.mig:
        record |= layout_keys(gpu_uuid, model.mig, slot.mig)
    return {f"gpu.{index}.{key}": value for key, value in record.items()}


def _sensors(model: Model) -> dict[str, Value]:
    record: dict[str, Value] = {
        "temperature": 34,
        "temperature.max": 85,
        "temperature.slowdown": 89,
        "temperature.shutdown": 92,
        "temperature.memory": 36,
        "temperature.memory_max": 95,
        "power.usage": model.power["idle"] * 1000,
        "power.limit": model.power["default"] * 1000,
        "power.default": model.power["default"] * 1000,
        "power.min": model.power["min"] * 1000,
        "power.max": model.power["max"] * 1000,
        "energy": 0,
        "pstate": 0,
        "pcie.replays": 0,
    }
    for kind in ("graphics", "sm", "memory", "video"):
        top = model.clock["graphics" if kind == "sm" else kind]
        record[f"clock.max.{kind}"] = top
        record[f"clock.{kind}"] = top if kind == "memory" else model.clock["idle"]
    return record


def _memory_health(model: Model) -> dict[str, Value]:
    record: dict[str, Value] = {"ecc.mode": 1, "ecc.pending": 1}
    names = ("corrected", "uncorrected", "pending", "failure")
    if model.arch >= _AMPERE:
        return record | {f"remap.{name}": 0 for name in names}
    return record | {"retired.sbe": 0, "retired.dbe": 0, "retired.pending": 0}


def _links(index: int, profile: Profile) -> dict[str, Value]:
    """The ends of the NVLinks of a GPU: all switches, or all other GPUs."""
    nvlink = profile.slots[index].model.nvlink
    if not nvlink or not profile.nvlink:
        return {}
    if profile.nvlink == "switch":
        ends = [f"switch:00000000:{bus:02X}:00.0" for bus in profile.switches]
    else:
        others = (slot for slot in profile.slots if slot is not profile.slots[index])
        ends = [f"gpu:{slot.bus_id}" for slot in others]
    return {
        f"gpu.{index}.nvlink.{link}": ends[link * len(ends) // nvlink["links"]]
        for link in range(nvlink["links"])
    }


def _serial(origin: str) -> str:
    digits = int.from_bytes(hashlib.sha256(origin.encode()).digest()[:8]) % 10**12
    return f"1{digits:012d}"


def _load(name: str) -> dict[str, Any]:
    return tomllib.loads((files("gpuslice_sim") / "profiles" / name).read_text())


def _model(key: str, table: dict[str, Any]) -> Model:
    mig = table.pop("mig", None)
    profiles_of = {name: MigProfile.of(name, row) for name, row in mig.items()} if mig else None
    return Model(key=key, mig=profiles_of, **table)


def _profile(name: str, table: dict[str, Any]) -> Profile:
    slots = tuple(
        Slot(
            model=find_model(gpu["model"]),
            bus=gpu["bus"],
            numa=gpu["numa"],
            minor=gpu.get("minor", index),
            switch=gpu.get("switch", -1),
            mig=tuple(gpu.get("mig", ())),
        )
        for index, gpu in enumerate(table["gpus"])
    )
    return Profile(
        name=name,
        about=table["about"],
        cpus_per_socket=table["cpus_per_socket"],
        slots=slots,
        nvlink=table.get("nvlink", ""),
        switches=tuple(table.get("switches", ())),
    )
