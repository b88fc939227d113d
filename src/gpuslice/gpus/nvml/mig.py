"""A MIG device of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pynvml

from gpuslice.gpus.nvml.limited_calls import SubjectCalls


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
    # With the calls of its GPU.
    _call: SubjectCalls = field(compare=False, repr=False)

    def uuid(self) -> str:
        return str(self._call(pynvml.nvmlDeviceGetUUID, self._raw))

    def name(self) -> str:
        return str(self._call(pynvml.nvmlDeviceGetName, self._raw))

    def gpu_instance(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetGpuInstanceId, self._raw))

    def compute_instance(self) -> int:
        return int(self._call(pynvml.nvmlDeviceGetComputeInstanceId, self._raw))

    def attributes(self) -> MigAttributes:
        found = self._call(pynvml.nvmlDeviceGetAttributes_v2, self._raw)
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
