"""A typed interface to NVML. No other module imports the binding.

Every method blocks. None may run while another thread opens or closes the driver.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Self, TypeVar
from uuid import UUID

import pynvml

_T = TypeVar("_T")
_MIB = 1024 * 1024
# NVML's instance id of an event that does not concern a MIG instance.
_NO_INSTANCE = 0xFFFFFFFF


class NvmlError(Exception):
    """NVML returned an error."""

    def __init__(self, call: str, error: pynvml.NVMLError) -> None:
        super().__init__(f"{call}: {error}")
        self.gpu_is_lost: bool = error.value in (
            pynvml.NVML_ERROR_GPU_IS_LOST,
            pynvml.NVML_ERROR_RESET_REQUIRED,
        )
        self.not_found: bool = error.value in (
            pynvml.NVML_ERROR_NOT_FOUND,
            pynvml.NVML_ERROR_INVALID_ARGUMENT,
        )
        # Newer drivers remove functions that have a successor.
        self.missing: bool = error.value == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND
        self.unsupported: bool = error.value in (
            pynvml.NVML_ERROR_NOT_SUPPORTED,
            pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        )


class DriverUnavailable(NvmlError):
    """The driver or its library cannot be used now."""

    def __init__(self, call: str, error: pynvml.NVMLError) -> None:
        super().__init__(call, error)
        # The driver was replaced, and this process keeps the old library until it exits.
        self.outdated: bool = error.value == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH


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
class MigAttributes:
    """The attributes of a MIG device."""

    memory_mib: int
    multiprocessors: int
    gpu_slices: int
    compute_slices: int
    # copy, decoder, encoder, jpeg, ofa
    engines: tuple[int, int, int, int, int]


@dataclass(frozen=True, slots=True)
class MigHandle:
    """A MIG device. `index` is its index on the GPU."""

    index: int
    _raw: Any

    def uuid(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetUUID, self._raw))

    def name(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetName, self._raw))

    def gpu_instance(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetGpuInstanceId, self._raw))

    def compute_instance(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetComputeInstanceId, self._raw))

    def attributes(self) -> MigAttributes:
        found = _call(pynvml.nvmlDeviceGetAttributes_v2, self._raw)
        return MigAttributes(
            memory_mib=int(found.memorySizeMB),
            multiprocessors=int(found.multiprocessorCount),
            gpu_slices=int(found.gpuInstanceSliceCount),
            compute_slices=int(found.computeInstanceSliceCount),
            engines=(
                int(found.sharedCopyEngineCount),
                int(found.sharedDecoderCount),
                int(found.sharedEncoderCount),
                int(found.sharedJpegCount),
                int(found.sharedOfaCount),
            ),
        )


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

    def uuid(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetUUID, self._raw))

    def minor(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetMinorNumber, self._raw))

    def name(self) -> str:
        return str(_call(pynvml.nvmlDeviceGetName, self._raw))

    def memory_bytes(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetMemoryInfo, self._raw).total)

    def memory_mib(self) -> int:
        return self.memory_bytes() // _MIB

    def pci_bus_id(self) -> str:
        """As in sysfs."""
        return sysfs_bus_id(_text(_call(pynvml.nvmlDeviceGetPciInfo, self._raw).busId))

    def compute_capability(self) -> tuple[int, int]:
        major, minor = _call(pynvml.nvmlDeviceGetCudaComputeCapability, self._raw)
        return int(major), int(minor)

    def mig_mode(self) -> bool | None:
        """Whether MIG is enabled; None if the GPU does not support it."""
        try:
            current, _pending = _call(pynvml.nvmlDeviceGetMigMode, self._raw)
        except NvmlError as error:
            if error.unsupported:
                return None
            raise
        return bool(current == pynvml.NVML_DEVICE_MIG_ENABLE)

    def mig_enabled(self) -> bool:
        return self.mig_mode() is True

    def max_mig_devices(self) -> int:
        """MIG devices have indices below this number. Any of them may be unused."""
        return int(_call(pynvml.nvmlDeviceGetMaxMigDeviceCount, self._raw))

    def mig_device(self, index: int) -> MigHandle | None:
        try:
            raw = _call(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, self._raw, index)
        except NvmlError as error:
            if error.not_found:
                return None
            raise
        return MigHandle(index, raw)

    def gpu_instance_profile(self, gpu_instance: int) -> int:
        """NVML's number of the profile of a GPU instance. Requires CAP_SYS_ADMIN."""
        instance = _call(pynvml.nvmlDeviceGetGpuInstanceById, self._raw, gpu_instance)
        wanted = _call(pynvml.nvmlGpuInstanceGetInfo, instance).profileId
        for number in range(pynvml.NVML_GPU_INSTANCE_PROFILE_COUNT):
            try:
                profile = _call(_instance_profile, self._raw, number)
            except NvmlError as error:
                if error.unsupported or error.not_found:
                    continue
                raise
            if profile.id == wanted:
                return number
        missing = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        raise NvmlError(f"profile of GPU instance {gpu_instance}", missing)

    def exclusive_process(self) -> bool:
        try:
            mode = _call(pynvml.nvmlDeviceGetComputeMode, self._raw)
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
        return int(_call(pynvml.nvmlDeviceGetTopologyCommonAncestor, self._raw, other._raw))

    def links(self) -> tuple[NvLink, ...]:
        """Active NVLinks. A link that cannot be read is omitted."""
        found = (self._link(number) for number in range(pynvml.NVML_NVLINK_MAX_LINKS))
        return tuple(link for link in found if link is not None)

    def _link(self, number: int) -> NvLink | None:
        try:
            if not _call(pynvml.nvmlDeviceGetNvLinkState, self._raw, number):
                return None
        except NvmlError:
            return None
        return NvLink(self._link_end(number), self._link_bus_id(number))

    def _link_bus_id(self, number: int) -> str:
        try:
            remote = _call(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, self._raw, number)
        except NvmlError:  # a switch outside of this machine has no address here
            return ""
        return sysfs_bus_id(_text(remote.busId))

    def _link_end(self, number: int) -> LinkEnd:
        try:
            kind = _call(pynvml.nvmlDeviceGetNvLinkRemoteDeviceType, self._raw, number)
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
            _call(pynvml.nvmlDeviceGetGpuFabricInfo, self._raw, ctypes.byref(info))
        except NvmlError as error:
            if not error.missing:
                raise
            info = pynvml.c_nvmlGpuFabricInfoV_t()
            _call(pynvml.nvmlDeviceGetGpuFabricInfoV, self._raw, ctypes.byref(info))
        return info

    def same_as(self, raw: Any) -> bool:
        return _address(self._raw) == _address(raw)


@dataclass(frozen=True, slots=True)
class XidEvent:
    """A critical error that the driver reports. `handle` is None if the GPU is not identified.

    Instances are None if the error is not limited to a MIG instance.
    """

    xid: int
    handle: GpuHandle | None
    gpu_instance: int | None = None
    compute_instance: int | None = None


class Nvml:
    """An open NVML session."""

    @classmethod
    def open(cls, library: Path | None = None) -> Self:
        """`library` is the file of the library if the loader does not find it by name."""
        try:
            if library is not None:
                # The binding loads the library by name, and gets this one if it is loaded already.
                _load(library)
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise DriverUnavailable("nvmlInit", error) from error
        return cls()

    def close(self) -> None:
        try:
            pynvml.nvmlShutdown()
        except pynvml.NVMLError as error:
            raise NvmlError("nvmlShutdown", error) from error

    def driver_version(self) -> str:
        return str(_call(pynvml.nvmlSystemGetDriverVersion))

    def cuda_version(self) -> tuple[int, int]:
        """The newest CUDA version that the driver supports."""
        version = int(_call(pynvml.nvmlSystemGetCudaDriverVersion))
        return version // 1000, version % 1000 // 10

    def count(self) -> int:
        return int(_call(pynvml.nvmlDeviceGetCount))

    def gpu(self, index: int) -> GpuHandle:
        return GpuHandle(index, _call(pynvml.nvmlDeviceGetHandleByIndex, index))


class XidEvents:
    """XID events of a set of GPUs."""

    def __init__(self) -> None:
        self._set = _call(pynvml.nvmlEventSetCreate)
        self._handles: list[GpuHandle] = []

    def close(self) -> None:
        _call(pynvml.nvmlEventSetFree, self._set)

    def register(self, handle: GpuHandle) -> bool:
        """Returns whether the GPU reports XIDs."""
        try:
            supported = _call(pynvml.nvmlDeviceGetSupportedEventTypes, handle._raw)  # noqa: SLF001
            if not supported & pynvml.nvmlEventTypeXidCriticalError:
                return False
            self._subscribe(handle)
        except NvmlError as error:
            if error.unsupported:
                return False
            raise
        self._handles.append(handle)
        return True

    def _subscribe(self, handle: GpuHandle) -> None:
        _call(
            pynvml.nvmlDeviceRegisterEvents,
            handle._raw,  # noqa: SLF001
            pynvml.nvmlEventTypeXidCriticalError,
            self._set,
        )

    def wait(self, timeout_ms: int) -> XidEvent | None:
        """Waits for the next XID. None: timed out."""
        try:
            event = pynvml.nvmlEventSetWait_v2(self._set, timeout_ms)
        except pynvml.NVMLError as error:
            if error.value == pynvml.NVML_ERROR_TIMEOUT:
                return None
            raise NvmlError("nvmlEventSetWait", error) from error
        if event.eventType != pynvml.nvmlEventTypeXidCriticalError:
            return None
        owner = next((handle for handle in self._handles if handle.same_as(event.device)), None)
        return XidEvent(
            int(event.eventData),
            owner,
            _instance(event.gpuInstanceId),
            _instance(event.computeInstanceId),
        )


def sysfs_bus_id(bus_id: str) -> str:
    """NVML writes 00000000:3B:00.0 where the kernel has 0000:3b:00.0."""
    domain, _, rest = bus_id.lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return bus_id.lower()


def _call(function: Callable[..., _T], *args: Any) -> _T:
    try:
        return function(*args)
    except pynvml.NVMLError as error:
        raise NvmlError(function.__name__, error) from error


def _load(library: Path) -> None:
    try:
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except OSError as error:
        missing = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
        raise DriverUnavailable(f"cannot load {library}: {error}", missing) from error


def _instance_profile(raw: Any, number: int) -> Any:
    # The first version of the call, which every driver with MIG has.
    return pynvml.nvmlDeviceGetGpuInstanceProfileInfo(raw, number, version=1)


def _instance(number: int) -> int | None:
    return None if number == _NO_INSTANCE else int(number)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _address(raw: Any) -> int | None:
    return ctypes.cast(raw, ctypes.c_void_p).value
