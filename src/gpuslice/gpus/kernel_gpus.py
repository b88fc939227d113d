"""The GPUs of the node as the kernel module lists them."""

from __future__ import annotations

from pathlib import Path

from gpuslice.gpus.plausible import KernelGpu, parse_information

_GPUS = Path("driver/nvidia/gpus")


def read_kernel_gpus(proc: Path) -> dict[str, KernelGpu]:
    """By PCI address, as sysfs writes it. Empty if this container does not see them."""
    found = {}
    try:
        for directory in sorted((proc / _GPUS).iterdir()):
            text = (directory / "information").read_text(encoding="utf-8", errors="replace")
            gpu = parse_information(text)
            if gpu is not None:
                found[directory.name] = gpu
    except OSError:  # GPUs come and go
        return found
    return found
