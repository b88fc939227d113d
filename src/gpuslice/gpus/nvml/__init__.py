"""A typed interface to NVML. No other package imports the binding.

Every method blocks, for a limited time: a call that hangs fails with DriverHangs. None may run
while another thread opens or closes the driver.
"""

from gpuslice.gpus.nvml.calls import (
    DriverHangs,
    DriverUnavailable,
    Nonsense,
    NvmlError,
    sysfs_bus_id,
)
from gpuslice.gpus.nvml.driver import Nvml
from gpuslice.gpus.nvml.events import XidEvent, XidEvents
from gpuslice.gpus.nvml.gpu import Fabric, GpuHandle, LinkEnd, NvLink
from gpuslice.gpus.nvml.limited_calls import LimitedCalls, Limits, Subject
from gpuslice.gpus.nvml.memory_limits import NO_LIMIT, MemoryLimits
from gpuslice.gpus.nvml.mig import MigAttributes, MigHandle
from gpuslice.gpus.nvml.processes import GpuProcess

__all__ = [
    "NO_LIMIT",
    "DriverHangs",
    "DriverUnavailable",
    "Fabric",
    "GpuHandle",
    "GpuProcess",
    "LimitedCalls",
    "Limits",
    "LinkEnd",
    "MemoryLimits",
    "MigAttributes",
    "MigHandle",
    "Nonsense",
    "NvLink",
    "Nvml",
    "NvmlError",
    "Subject",
    "XidEvent",
    "XidEvents",
    "sysfs_bus_id",
]
