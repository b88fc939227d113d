"""How much memory of a GPU no unit contains."""

from __future__ import annotations

from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.rules import MemoryRule

# The MPS server has 30 to 420 MiB of each GPU, depending on GPU and driver.
MPS_SERVER_MIB = 512
# The driver keeps 260 to 780 MiB of a GPU for itself; this much, if it does not tell.
_UNKNOWN_DRIVER_MIB = 512
# Another driver needs slightly more or less, and the number of units should not change for that.
_STEP_MIB = 256


def reserve_mib(gpu: Gpu, rule: MemoryRule) -> int:
    """If units are limited, every container of a full GPU can use all that it was granted.

    Where memory is only counted, no unit is guaranteed, and the whole GPU counts.
    """
    if rule.reserve_mib is not None:
        return rule.reserve_mib
    if not rule.limited:
        return 0
    driver = _UNKNOWN_DRIVER_MIB if gpu.reserved_mib is None else gpu.reserved_mib
    return -(-(driver + MPS_SERVER_MIB) // _STEP_MIB) * _STEP_MIB
