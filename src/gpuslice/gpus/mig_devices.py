"""The MIG devices of a GPU. One that cannot be described leaves the others as they are."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.gpus.mig_capabilities import Capabilities, NoCapability
from gpuslice.gpus.mig_profile import name_of_profile, suffix_in_name, suffix_of_profile
from gpuslice.gpus.nvml import GpuHandle, MigHandle, NvmlError
from gpuslice.slicing.gpu import MigDevice


@dataclass(frozen=True, slots=True)
class Undescribed:
    """A MIG device that cannot be offered. `silent`: it did not answer, and may do so later."""

    place: int
    reason: str
    silent: bool


def read_mig_devices(
    gpu: GpuHandle, capabilities: Capabilities
) -> tuple[tuple[MigDevice, ...], tuple[Undescribed, ...]]:
    """Raises NvmlError if it is the GPU that does not answer."""
    devices: list[MigDevice] = []
    undescribed: list[Undescribed] = []
    gpu_minor, gpu_bytes = gpu.minor(), gpu.memory_bytes()
    for place in range(gpu.mig_places()):
        try:
            handle = gpu.mig_device(place)
            if handle is not None:
                devices.append(_describe(gpu, handle, gpu_minor, gpu_bytes, capabilities))
        except NoCapability as error:
            undescribed.append(Undescribed(place, str(error), silent=False))
        except NvmlError as error:
            if error.gpu_is_lost:
                raise
            undescribed.append(Undescribed(place, f"it does not answer ({error})", silent=True))
    return tuple(devices), tuple(undescribed)


def _describe(
    gpu: GpuHandle,
    handle: MigHandle,
    gpu_minor: int,
    gpu_bytes: int,
    capabilities: Capabilities,
) -> MigDevice:
    gpu_instance, compute_instance = handle.gpu_instance(), handle.compute_instance()
    has = handle.attributes()
    return MigDevice(
        uuid=handle.uuid(),
        index=handle.index,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        profile=name_of_profile(
            has.gpu_slices,
            has.compute_slices,
            has.memory_mib,
            gpu_bytes,
            _suffix(gpu, handle, gpu_instance),
        ),
        memory_mib=has.memory_mib,
        multiprocessors=has.multiprocessors,
        slices=(has.gpu_slices, has.compute_slices),
        engines=has.engines,
        nodes=capabilities.nodes(gpu_minor, gpu_instance, compute_instance),
    )


def _suffix(gpu: GpuHandle, handle: MigHandle, gpu_instance: int) -> str:
    """The profile itself may only be asked for with privileges, which not every agent has."""
    try:
        return suffix_of_profile(gpu.gpu_instance_profile(gpu_instance))
    except NvmlError as error:
        if error.gpu_is_lost:
            raise
        return suffix_in_name(handle.name())
