"""The variables that gpushare's users and tools read."""

from __future__ import annotations

from gpuslice.kubelet.answer import ContainerAnswer
from gpuslice.slicing.grant import Grant


def gpushare_variables(grant: Grant, *, pod_units: int) -> ContainerAnswer:
    """Beside the GPU itself."""
    return ContainerAnswer(
        env={
            "ALIYUN_COM_GPU_MEM_IDX": str(grant.gpu.minor),
            "ALIYUN_COM_GPU_MEM_POD": str(pod_units),
            "ALIYUN_COM_GPU_MEM_CONTAINER": str(grant.units),
            "ALIYUN_COM_GPU_MEM_DEV": str(grant.gpu_units),
        }
    )
