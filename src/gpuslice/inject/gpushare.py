"""The variables that users and tools of gpushare read."""

from __future__ import annotations

from gpuslice.inject.edits import ContainerEdits
from gpuslice.slicing.grant import GrantedPart


def gpushare_variables(granted: GrantedPart, *, pod_units: int) -> ContainerEdits:
    return ContainerEdits(
        env={
            "ALIYUN_COM_GPU_MEM_IDX": str(granted.part.device.minor),
            "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(granted.count),
            "ALIYUN_COM_GPU_MEM_DEV": str(granted.part.count),
        }
    )
