"""Where we differ from NVIDIA's device plugin 0.19.0 on purpose.

This is the whole list: what is not named here must be the same. Every entry is shown by a test, so
that none stays when its reason is gone, and has a row of the same id in docs/compatibility.md.
What the plugins do is shown in test_differences_of_*.py, what their CDI files contain in
test_cdi_agrees.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar


@dataclass(frozen=True, slots=True)
class Difference:
    id: str
    reason: str


ANNOTATION_KEY = Difference(
    "annotation-key",
    "the key of the CDI annotation ends in a number that follows from its value, not in a random "
    "one: equal requests get equal answers",
)
ORDER = Difference(
    "order",
    "devices named by index come in the order of the request, not in any order",
)
NODE_ONCE = Difference(
    "node-once",
    "a device node that two devices or replicas have in common is passed once, not twice",
)
REMEDY = Difference(
    "remedy",
    "a refusal has a reason code, then NVIDIA's words and then the remedy",
)
NO_SENSE = Difference(
    "no-sense",
    "a request that names no device, or one twice, is refused; NVIDIA's answers it, the former "
    "with an empty list, which the runtime takes for `no GPUs` or for an error",
)
MPS_LIMITS = Difference(
    "mps-limits",
    "MPS containers get their own limits and see their own GPU only; NVIDIA's leaves both to the "
    "daemon's defaults, and a container sees every GPU of the daemon",
)
MPS_SHM = Difference(
    "mps-shm",
    "each MPS daemon and its containers have a /dev/shm of their own; NVIDIA's has one for all "
    "daemons of the node, so that containers read and remove files of each other",
)
MPS_PRIVILEGED_SOCKET = Difference(
    "mps-privileged-socket",
    "containers get the socket for everybody in place of the privileged one; with NVIDIA's, root "
    "in a container can change limits and end the daemon",
)
MPS_PRE_START = Difference(
    "mps-pre-start",
    "the kubelet is told to ask before every start of an MPS container, as its limits hold only "
    "while the daemon lives",
)
MPS_DAEMON_DOWN = Difference(
    "mps-daemon-down",
    "while the MPS daemon is away, replicas are listed and unhealthy; NVIDIA's does not register "
    "and tries again after 30 s, and does not notice a daemon that dies later",
)
MPS_SEVERAL = Difference(
    "mps-several",
    "failRequestsGreaterThanOne: false counts for MPS as well, as in NVIDIA's 0.20; the limits "
    "grow with the number of replicas",
)
MPS_BESIDE_TIME_SLICING = Difference(
    "mps-beside-time-slicing",
    "sharing.timeSlicing beside sharing.mps counts, on devices of its own; NVIDIA's ignores it",
)
MPS_IN_MIG_MODE = Difference(
    "mps-in-mig-mode",
    "a GPU in MIG mode has no MPS replicas and is left out with a warning; NVIDIA's offers them "
    "under the MIG strategy none, where limits of the whole card hold for nobody",
)
ALL_REPLICAS_UNHEALTHY = Difference(
    "all-replicas-unhealthy",
    "a broken GPU makes all of its replicas unhealthy, as in NVIDIA's after 0.20; there it is one "
    "of them",
)
EXTRAS_OFF = Difference(
    "extras-off",
    "GPUDirect Storage, InfiniBand devices and GDRCopy are off unless asked for, as in NVIDIA's "
    "0.20",
)
EMPTY_VARIABLE = Difference(
    "empty-variable",
    "a variable without a value says nothing; NVIDIA's takes it for a value, which is an error "
    "for most and for KUBELET_SOCKET means never to register: the flag says that here",
)
STRICT_KEYS = Difference(
    "strict-keys",
    "an unknown key of the file is an error, unless --lenient; NVIDIA's says nothing of it",
)
STRICT_VALUES = Difference(
    "strict-values",
    "a value that NVIDIA's takes without effect or reads otherwise than it is written is an error",
)
HONOURED = Difference(
    "honoured",
    "`devices` and `rename` of sharing and `resources` count; NVIDIA's reads, warns and ignores "
    "them",
)
ONE_REPLICA = Difference(
    "one-replica",
    "replicas: 1 is allowed, for a single client with limits",
)
SOCKET_DIRECTORY = Difference(
    "socket-directory",
    "our sockets are where --kubelet-socket is; NVIDIA's are in the usual directory in any case, "
    "where such a kubelet does not look",
)
PARTS_OF_INSTANCES = Difference(
    "parts-of-instances",
    "a MIG device that is a part of its GPU instance (1c.3g.20gb) is left out with a warning; "
    "NVIDIA's offers it under the name of the whole, and from 0.20 on nothing of the node",
)
WHOLE_PROFILE = Difference(
    "whole-profile",
    "a MIG device with media extensions is mig-1g.5gb.me, as in NVIDIA's 0.20; NVIDIA's 0.19 "
    "offers it as mig-1g.5gb, as that is a part of its name",
)
DEAD_GPU = Difference(
    "dead-gpu",
    "a GPU that does not answer costs itself; NVIDIA's offers nothing of the node then",
)
SINGLE_SKIPS = Difference(
    "single-skips",
    "with migStrategy single, a GPU that differs from the others is skipped; NVIDIA's exits",
)
UNHEALTHY_REJECTED = Difference(
    "unhealthy-rejected",
    "devices of an unhealthy GPU are not allocated, even if the kubelet does not know yet; "
    "NVIDIA's allocates them",
)
SURE_ADVICE = Difference(
    "sure-advice",
    "the kubelet's question for a preference is always answered: with what there is where too few "
    "devices are free, and for numbers of GPUs that NVIDIA's dies of",
)
CLOSER_GROUP = Difference(
    "closer-group",
    "GPUs asked for together are the closest ones; NVIDIA's trades them for a closer rest",
)
SPREAD_OVER_GPUS = Difference(
    "spread-over-gpus",
    "MIG devices and their replicas are spread over GPUs first; NVIDIA's takes MIG devices of one "
    "GPU for independent ones",
)
LAST_GOOD_SETTINGS = Difference(
    "last-good-settings",
    "a broken file at SIGHUP leaves the last good settings in force; NVIDIA's exits",
)

CDI_OFFERED = Difference(
    "cdi-offered",
    "a GPU in MIG mode that the strategy `none` offers whole is described whole; NVIDIA's names "
    "the MIG devices in its place, so that the answer to a pod names a device that no file has",
)
CDI_HOST_PATH = Difference(
    "cdi-host-path",
    "a node that has the same path on the host is not told it twice, so that version 0.3.0 of the "
    "specification is enough; NVIDIA's states it and needs 0.5.0",
)
CDI_GROUPS = Difference(
    "cdi-groups",
    "containers join the groups of device nodes that not everyone may open, for which version "
    "0.7.0 is needed; NVIDIA's 0.19 means to and does not, by a mistake that later ones correct",
)
CDI_BY_PATH = Difference(
    "cdi-by-path",
    "links by PCI path are made in the container's /dev/dri/by-path; NVIDIA's puts the driver "
    "root in front, where no program in the container looks",
)
CDI_ONE_HOOK = Difference(
    "cdi-one-hook",
    "one hook makes all links; NVIDIA's has one more in front for those of graphics libraries",
)
CDI_IMEX_NUMBERS = Difference(
    "cdi-imex-numbers",
    "the numbers and the mode of IMEX channels are stated, as those of all other nodes; NVIDIA's "
    "leaves them to the runtime",
)

# Of the plugins.
ACCEPTED = (
    ANNOTATION_KEY,
    ORDER,
    NODE_ONCE,
    REMEDY,
    NO_SENSE,
    MPS_LIMITS,
    MPS_SHM,
    MPS_PRIVILEGED_SOCKET,
    MPS_PRE_START,
    MPS_DAEMON_DOWN,
    MPS_SEVERAL,
    MPS_BESIDE_TIME_SLICING,
    MPS_IN_MIG_MODE,
    ALL_REPLICAS_UNHEALTHY,
    EXTRAS_OFF,
    EMPTY_VARIABLE,
    STRICT_KEYS,
    STRICT_VALUES,
    HONOURED,
    ONE_REPLICA,
    SOCKET_DIRECTORY,
    PARTS_OF_INSTANCES,
    WHOLE_PROFILE,
    DEAD_GPU,
    SINGLE_SKIPS,
    UNHEALTHY_REJECTED,
    SURE_ADVICE,
    CLOSER_GROUP,
    SPREAD_OVER_GPUS,
    LAST_GOOD_SETTINGS,
)
# Of their CDI specifications.
ACCEPTED_IN_CDI = (
    CDI_OFFERED,
    CDI_HOST_PATH,
    CDI_GROUPS,
    CDI_BY_PATH,
    CDI_ONE_HOOK,
    CDI_IMEX_NUMBERS,
)

_MARK = "shown_differences"
_Test = TypeVar("_Test", bound=Callable[..., object])


def shows(*differences: Difference) -> Callable[[_Test], _Test]:
    """Marks a test that would fail if the difference were none."""

    def mark(test: _Test) -> _Test:
        vars(test)[_MARK] = differences
        return test

    return mark


def shown_by(tests: dict[str, object]) -> set[Difference]:
    return {one for test in tests.values() for one in getattr(test, _MARK, ())}
