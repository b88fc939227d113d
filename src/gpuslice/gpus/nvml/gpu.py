"""A GPU that NVML enumerates."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

import pynvml

from gpuslice.gpus.nvml.calls import Nonsense, NvmlError, address, sysfs_bus_id, text
from gpuslice.gpus.nvml.limited_calls import SubjectCalls
from gpuslice.gpus.nvml.memory_limits import MemoryLimits, read_limits, write_limits
from gpuslice.gpus.nvml.mig import MigHandle
from gpuslice.gpus.nvml.processes import GpuProcess, running_processes

_MIB = 1024 * 1024
# No GPU has more than seven.
_MOST_MIG_DEVICES = 64


class LinkEnd(Enum):
    """What an NVLink is connected to."""

    GPU = "gpu"
    SWITCH = "switch"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class NvLink:
    """An active link. `bus_id` is that of the other end, as in sysfs; empty if unknown."""

    end: LinkEnd
    bus_id: str


@dataclass(frozen=True, slots=True)
class Fabric:
    """The cluster and the clique of a GPU in an NVLink fabric."""

    cluster: str
    clique: int


@dataclass(frozen=True, slots=True)
class GpuHandle:
    """A GPU that NVML enumerates."""

    index: int
    _raw: Any
    _call: SubjectCalls = field(compare=False, repr=False)

    def uuid(self) -> str:
        return str(self._call(pynvml.nvmlDeviceGetUUID, self._raw))

    def minor(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetMinorNumber, self._raw))

    def name(self) -> str:
        return str(self._call(pynvml.nvmlDeviceGetName, self._raw))

    def memory_bytes(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetMemoryInfo, self._raw).total)

    def memory_mib(self) -> int:
        return self.memory_bytes() // _MIB

    def reserved_mib(self) -> int | None:
        """What driver and firmware keep for themselves; None: drivers before 510 do not tell."""
        try:
            memory = self._call(pynvml.nvmlDeviceGetMemoryInfo, self._raw, pynvml.nvmlMemory_v2)
        except NvmlError as error:
            if error.unsupported or error.value == pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH:
                return None
            raise
        return int(memory.reserved) // _MIB

    def pci_bus_id(self) -> str:
        """As in sysfs."""
        return sysfs_bus_id(text(self._call(pynvml.nvmlDeviceGetPciInfo, self._raw).busId))

    def compute_capability(self) -> tuple[int, int]:
        major, minor = self._call(pynvml.nvmlDeviceGetCudaComputeCapability, self._raw)
        return int(major), int(minor)

    def cores(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetNumGpuCores, self._raw))

    def mig_mode(self) -> bool | None:
        """Whether MIG is enabled; None if the GPU does not support it."""
        try:
            current, _pending = self._call(pynvml.nvmlDeviceGetMigMode, self._raw)
        except NvmlError as error:
            if error.unsupported:
                return None
            raise
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)

    def mig_enabled(self) -> bool:
        return self.mig_mode() is True

    def max_mig_devices(self) -> int:
        """MIG devices have indices below this number. Any of them may be unused."""
        count = int(self._call(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._raw))
        if count > _MOST_MIG_DEVICES:
            raise Nonsense(f"it can have {count} MIG devices")
        return count

    def mig_device(self, index: int) -> MigHandle | None:
        try:
            raw = self._call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._raw, index)
        except NvmlError as error:
            if error.not_found:
                return None
            raise
        return MigHandle(index, raw, self._call)

    def gpu_instance_profile(self, gpu_instance: int) -> int:
        """NVML's number of the profile of a GPU instance. Requires CAP_SYS_ADMIN."""
        instance = self._call(pynvml.nvmlDeviceGetGpuInstanceById, self._raw, gpu_instance)
        wanted = self._call(pynvml.nvmlGpuInstanceGetInfo, instance).profileId
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                profile = self._call(_instance_profile, self._raw, number)
            except NvmlError as error:
                if error.unsupported or error.not_found:
                    continue
                raise
            if profile.id == wanted:
                return number
        raise NvmlError(
            f"GPU instance {gpu_instance} has an unknown profile", pynvml.NVML_ERROR_NOT_FOUND
        )

    def exclusive_process(self) -> bool:
        try:
            mode = self._call(pynvml.nvmlDeviceGetComputeMode, self._raw)
        except NvmlError as error:
            if error.unsupported:
                return False
            raise
        return bool(mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)

    def probe(self) -> None:
        """Raises NvmlError if the GPU does not answer.

        Makes two calls, because the library may have cached the result of one of them.
        """
        self.uuid()
        try:
            self.memory_bytes()
        except NvmlError as error:
            if not error.unsupported:
                raise

    def common_ancestor(self, other: GpuHandle) -> int:
        """The common ancestor in the PCI topology: NVML_TOPOLOGY_*, from 0 (one board)."""
        return int(self._call(pynvml.nvmlDeviceGetTopologyCommonAncestor, self._raw, other._raw))

    def processes(self) -> tuple[GpuProcess, ...]:
        """Every process that uses the GPU, once."""
        return running_processes(self._raw, self._call)

    def memory_limits(self, cgroup: str) -> MemoryLimits:
        """Of all processes in the cgroup with this directory together."""
        return read_limits(self._raw, self._call, cgroup)

    def limit_memory(self, cgroup: str, limits: MemoryLimits) -> None:
        write_limits(self._raw, self._call, cgroup, limits)

    def links(self) -> tuple[NvLink, ...]:
        """Active NVLinks. A link that cannot be read is omitted."""
        found = (self._link(number) for number in range(pynvml.NVML_NVLINK_MAX_LINKS))
        return tuple(link for link in found if link is not None)

    def _link(self, number: int) -> NvLink | None:
        try:
            if not self._call(pynvml.nvmlDeviceGetNvLinkState, self._raw, number):
                return None
        except NvmlError:
            return None
        return NvLink(self._link_end(number), self._link_bus_id(number))

    def _link_bus_id(self, number: int) -> str:
        try:
            remote = self._call(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, self._raw, number)
        except NvmlError:  # a switch outside of this machine has no address here
            return ""
        return sysfs_bus_id(text(remote.busId))

    def _link_end(self, number: int) -> LinkEnd:
        try:
            kind = self._call(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, self._raw, number)
        except NvmlError:  # drivers before 465 do not report it
            return LinkEnd.UNKNOWN
        return {
            pynvml.NVML_NVLINK_DEVICE_TYPE_GPU: LinkEnd.GPU,
            pynvml.NVML_NVLINK_DEVICE_TYPE_SWITCH: LinkEnd.SWITCH,
        }.get(kind, LinkEnd.UNKNOWN)

    def fabric(self) -> Fabric | None:
        """None unless the GPU has joined one."""
        try:
            info = self._fabric_info()
        except NvmlError as error:
            if error.unsupported:
                return None
            raise
        cluster = bytes(info.clusterUuid)
        # The field has one byte, and the binding reads four.
        joined = info.state & 0xFF == pynvml.NVML_GPU_FABRIC_STATE_COMPLETED
        if not joined or info.status != pynvml.NVML_SUCCESS or not any(cluster):
            return None
        return Fabric(str(UUID(bytes=cluster)), int(info.cliqueId))

    def _fabric_info(self) -> Any:
        info = pynvml.c_nvmlGpuFabricInfo_t()
        try:
            self._call(pynvml.nvmlDeviceGetGpuFabricInfo, self._raw, ctypes.byref(info))
        except NvmlError as error:
            if not error.missing:
                raise
            info = pynvml.c_nvmlGpuFabricInfoV_t()
            self._call(pynvml.nvmlDeviceGetGpuFabricInfoV, self._raw, ctypes.byref(info))
        return info

    def same_as(self, raw: Any) -> bool:
        return address(self._raw) == address(raw)


def _instance_profile(raw: Any, number: int) -> Any:
    # The first version of the call, which every driver with MIG has.
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(raw, number, version=1)
