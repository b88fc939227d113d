"""Reads the MIG devices of a GPU. A device that cannot be described is skipped."""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.gpus.mig_capabilities import Capabilities, NoCapability
from gpuslice.gpus.mig_profile import name_of_profile, suffix_in_name, suffix_of_profile
from gpuslice.gpus.nvml import GpuHandle, MigHandle, Nonsense, NvmlError
from gpuslice.gpus.plausible import mig_problem
from gpuslice.slicing.gpu import MigDevice

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class SkippedMigDevice:
    """A MIG device that cannot be advertised. `silent`: it may answer later."""

    index: int
    reason: str
    silent: bool


def read_mig_devices(
    gpu: GpuHandle, capabilities: Capabilities
) -> tuple[tuple[MigDevice, ...], tuple[SkippedMigDevice, ...]]:
    """Raises NvmlError if the GPU itself does not answer."""
    devices: list[MigDevice] = []
    skipped: list[SkippedMigDevice] = []
    gpu_minor, gpu_bytes = gpu.minor(), gpu.memory_bytes()
    for index in range(gpu.max_mig_devices()):
        try:
            handle = gpu.mig_device(index)
            if handle is not None:
                devices.append(_describe(gpu, handle, gpu_minor, gpu_bytes, capabilities))
        except NoCapability as error:
            skipped.append(SkippedMigDevice(index, str(error), silent=False))
        except Nonsense as error:
            reason = f"the driver reports what cannot be true: {error}"
            skipped.append(SkippedMigDevice(index, reason, silent=True))
        except NvmlError as error:
            if error.gpu_is_lost:
                raise
            reason = f"it does not answer ({error})"
            skipped.append(SkippedMigDevice(index, reason, silent=True))
    return tuple(devices), tuple(skipped)


def _describe(
    gpu: GpuHandle,
    handle: MigHandle,
    gpu_minor: int,
    gpu_bytes: int,
    capabilities: Capabilities,
) -> MigDevice:
    gpu_instance, compute_instance = handle.gpu_instance(), handle.compute_instance()
    attributes = handle.attributes()
    mig = MigDevice(
        uuid=handle.uuid(),
        index=handle.index,
        gpu_instance=gpu_instance,
        compute_instance=compute_instance,
        profile=name_of_profile(
            attributes.gpu_slices,
            attributes.compute_slices,
            attributes.memory_mib,
            gpu_bytes,
            _suffix(gpu, handle, gpu_instance),
        ),
        memory_mib=attributes.memory_mib,
        multiprocessors=attributes.multiprocessors,
        slices=(attributes.gpu_slices, attributes.compute_slices),
        engines=attributes.engines,
        nodes=capabilities.nodes(gpu_minor, gpu_instance, compute_instance),
    )
    problem = mig_problem(mig, gpu_bytes // _MIB)
    if problem is not None:
        raise Nonsense(problem)
    return mig


def _suffix(gpu: GpuHandle, handle: MigHandle, gpu_instance: int) -> str:
    """Reading the profile requires privileges that the agent may not have."""
    try:
        return suffix_of_profile(gpu.gpu_instance_profile(gpu_instance))
    except NvmlError as error:
        if error.gpu_is_lost:
            raise
        return suffix_in_name(handle.name())
