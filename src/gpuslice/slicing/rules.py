"""How a node's GPUs become resources: the part of the configuration that slicing follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

DEFAULT_NAME = "nvidia.com/gpu"


class MigStrategy(Enum):
    """What becomes of GPUs in MIG mode."""

    NONE = "none"  # offered whole
    SINGLE = "single"  # all alike, offered under the name of whole GPUs
    MIXED = "mixed"  # offered under the name of their profile


class SharingStrategy(Enum):
    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"


class Policy(Enum):
    """Which replicas the kubelet should take."""

    DISTRIBUTED = "distributed"  # from the GPU that is used least
    PACKED = "packed"  # from the GPU that is used most
    SPREAD = "spread"  # as distributed, and never two of one GPU while there is another


@dataclass(frozen=True, slots=True)
class Selection:
    """Which devices a rule is about: all (neither is set), a number of them, or named ones.

    A reference is an index (`0`, `0:1`) or a UUID (`GPU-…`, `MIG-…`, `MIG-GPU-<uuid>/<gi>/<ci>`).
    """

    count: int | None = None
    references: tuple[str, ...] = ()

    @property
    def everything(self) -> bool:
        return self.count is None and not self.references


ALL = Selection()


@dataclass(frozen=True, slots=True)
class NameRule:
    """Devices whose model (or MIG profile) matches the pattern are offered under this name.

    `*` stands for any text; the pattern is matched from end to end.
    """

    pattern: str
    name: str
    nested: bool | None = None


@dataclass(frozen=True, slots=True)
class ReplicaRule:
    """Selected devices of the resource `name` are offered several times."""

    strategy: SharingStrategy
    name: str
    replicas: int
    # None: under their own name.
    rename: str | None = None
    devices: Selection = ALL
    fail_requests_greater_than_one: bool = False
    nested: bool | None = None
    # Memory of each device that no replica is promised.
    reserve_mib: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    mig_strategy: MigStrategy = MigStrategy.NONE
    # The first rule that matches names the device; these stand behind what the file says.
    gpus: tuple[NameRule, ...] = (NameRule("*", DEFAULT_NAME),)
    # None: nvidia.com/mig-<profile>, by strategy.
    mig: tuple[NameRule, ...] | None = None
    replicas: tuple[ReplicaRule, ...] = ()
    # GPUs whose memory is cut into units; they are offered in no other way.
    memory: Selection | None = None
    # Whether containers are nodes of nested clusters, unless a rule above says otherwise.
    nested: bool = False
