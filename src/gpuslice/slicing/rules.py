"""How a node's GPUs become resources: the part of the configuration that slicing follows."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from gpuslice.slicing.threads import ThreadRule, ThreadStrategy
from gpuslice.slicing.units import GIB, MemoryUnit

DEFAULT_NAME = "nvidia.com/gpu"
GPUSHARE_RESOURCE = "aliyun.com/gpu-mem"


class MigStrategy(Enum):
    """How GPUs in MIG mode are advertised."""

    NONE = "none"  # as whole GPUs
    SINGLE = "single"  # their MIG devices, which are identical, under the name of whole GPUs
    MIXED = "mixed"  # their MIG devices, under the name of the profile


class SharingStrategy(Enum):
    NONE = "none"
    TIME_SLICING = "time-slicing"
    MPS = "mps"
    MEMORY = "memory"


class Policy(Enum):
    """Which replicas GetPreferredAllocation prefers."""

    DISTRIBUTED = "distributed"  # from the GPU with the fewest replicas in use
    PACKED = "packed"  # from the GPU with the most replicas in use
    SPREAD = "spread"  # as distributed, and never two of one GPU while another one has some


@dataclass(frozen=True, slots=True)
class Selection:
    """The devices that a rule applies to: all (neither is set), a number of them, or named ones.

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
    """Devices whose model (or MIG profile) matches the pattern are advertised under this name.

    `*` matches any text. The pattern must match the whole model.
    """

    pattern: str
    name: str
    nested: bool | None = None


class Advertise(Enum):
    """Which free shares are advertised if the shares of a container must lie on one GPU."""

    ONE_GPU = "one-gpu"  # those of one GPU: the most that a pod can get
    ALL = "all"  # those of all GPUs, for a scheduler that knows GPUs


class DaemonLimits(Enum):
    """What the MPS control daemon limits its clients to, in addition to their own limits."""

    REPLICA = "replica"  # one replica: a program that removes its own limits does not get more
    NONE = "none"  # the whole GPU: a client can only lower a limit of the daemon


class Overcommit(Enum):
    """What happens if the shares of a device together have more than it has."""

    REFUSE = "refuse"
    WARN = "warn"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True)
class NamedShare:
    """`count` shares of each device, with limits of their own and a resource of their own."""

    name: str
    memory_mib: int
    threads: ThreadRule = ThreadStrategy.PROPORTIONAL
    count: int = 1


@dataclass(frozen=True, slots=True)
class ReplicaRule:
    """The selected devices of the resource `name` are advertised several times."""

    strategy: SharingStrategy
    name: str
    # The number of shares of each device.
    replicas: int
    # None: under their own name.
    rename: str | None = None
    devices: Selection = ALL
    fail_requests_greater_than_one: bool = False
    nested: bool | None = None
    # Memory of each device that no replica gets.
    reserve_mib: int = 0
    advertise: Advertise = Advertise.ONE_GPU
    # The limit on threads of one replica.
    threads: ThreadRule = ThreadStrategy.PROPORTIONAL
    # None: one replica, unless shares are uneven or a container can get several.
    daemon_limits: DaemonLimits | None = None
    # Instead of equal replicas.
    shares: tuple[NamedShare, ...] = ()
    overcommit: Overcommit = Overcommit.REFUSE

    @property
    def limited_by_daemon(self) -> bool:
        """Whether the MPS control daemon limits every client to one replica."""
        if self.strategy is not SharingStrategy.MPS:
            return False
        if self.daemon_limits is None:
            return self.fail_requests_greater_than_one and not self.shares
        return self.daemon_limits is DaemonLimits.REPLICA

    @property
    def resource(self) -> str:
        """The name that replicas are advertised under. Shares add their own to it."""
        return self.name if self.rename is None else self.rename

    @property
    def resources(self) -> tuple[str, ...]:
        """Every name that the devices are advertised under."""
        return tuple(map(self.resource_of, self.shares)) or (self.resource,)

    def resource_of(self, share: NamedShare) -> str:
        return f"{self.resource}.{share.name}"


class IdForm(Enum):
    """How memory units are named to the kubelet."""

    AUTO = "auto"  # long, or short for a GPU with very many units
    LONG = "long"  # <GPU UUID>-_-<unit>, as gpushare names them
    SHORT = "short"  # <minor number>-<unit>


@dataclass(frozen=True, slots=True)
class MemoryRule:
    """The memory of the selected GPUs is advertised in units."""

    devices: Selection = ALL
    resource: str = GPUSHARE_RESOURCE
    unit: MemoryUnit = GIB
    # Memory of each GPU that no unit contains; None: what the driver and MPS need of it.
    reserve_mib: int | None = 0
    threads: ThreadRule = ThreadStrategy.PROPORTIONAL
    ids: IdForm = IdForm.AUTO
    advertise: Advertise = Advertise.ONE_GPU
    # Whether MPS limits containers to their units. GPUs that it cannot limit are skipped.
    limited: bool = False
    # Whether each GPU has an MPS control daemon of its own. Otherwise one serves all of them.
    daemon_per_gpu: bool = False


@dataclass(frozen=True, slots=True)
class Rules:
    mig_strategy: MigStrategy = MigStrategy.NONE
    # The first rule that matches names the device. A device that none matches has its usual name.
    gpus: tuple[NameRule, ...] = (NameRule("*", DEFAULT_NAME),)
    # None: nvidia.com/mig-<profile>, or the name of whole GPUs, by strategy.
    mig: tuple[NameRule, ...] | None = None
    replicas: tuple[ReplicaRule, ...] = ()
    # GPUs that are sliced by memory are advertised in no other way.
    memory: MemoryRule | None = None
    # Whether containers are nodes of nested clusters, unless a rule above overrides it.
    nested: bool = False
