"""A typed interface to NVML. No other package imports the binding.

Every method blocks. None may run while another thread opens or closes the driver.
"""

from gpuslice.gpus.nvml.calls import DriverUnavailable, NvmlError, sysfs_bus_id
from gpuslice.gpus.nvml.driver import Nvml
from gpuslice.gpus.nvml.events import XidEvent, XidEvents
from gpuslice.gpus.nvml.gpu import Fabric, GpuHandle, LinkEnd, NvLink
from gpuslice.gpus.nvml.mig import MigAttributes, MigHandle

__all__ = [
    "DriverUnavailable",
    "Fabric",
    "GpuHandle",
    "LinkEnd",
    "MigAttributes",
    "MigHandle",
    "NvLink",
    "Nvml",
    "NvmlError",
    "XidEvent",
    "XidEvents",
    "sysfs_bus_id",
]
