"""Collects the labels of a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gpuslice.config.settings import Settings
from gpuslice.gpus.allocated_devices import own_gpus
from gpuslice.gpus.cuda import CudaError, cuda_gpus
from gpuslice.gpus.inventory import Inventory, Platform, read_inventory
from gpuslice.gpus.node_facts import read_facts
from gpuslice.gpus.nvml import Nvml, NvmlError
from gpuslice.labels.errors import NodeUnreadable
from gpuslice.labels.labels import labels_of
from gpuslice.slicing.catalogue import catalogue
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.slicing.pool import Pool

_TEGRA = "tegra"
_SYSFS = Path("/sys")


def collect_labels(
    nvml: Nvml | None,
    platform: Platform,
    gpus: Sequence[Gpu],
    pools: Sequence[Pool] | None,
    settings: Settings,
    timestamp: int | None = None,
    sysfs: Path = _SYSFS,
) -> dict[str, str]:
    """Blocks. Raises NodeUnreadable.

    `gpus` and `pools` are those that the node owns and advertises; pools are None if the rules do
    not fit the node. On platforms with placeholders for GPUs, both are read again, because the
    placeholders have no properties.
    """
    try:
        if platform is not Platform.NVML:
            gpus = _gpus_behind_placeholders(nvml, platform, settings)
            pools = pools_or_none(gpus, settings)
        source = None if platform is Platform.TEGRA else nvml
        facts = read_facts(source, gpus, settings.labels.machine_type_file, sysfs)
    except NvmlError as error:
        raise NodeUnreadable(f"the NVIDIA driver does not answer ({error})") from error
    except CudaError as error:
        raise NodeUnreadable(f"the CUDA driver does not answer ({error})") from error
    except SlicingError as error:
        raise NodeUnreadable(str(error)) from error
    return labels_of(facts, gpus, pools, settings, timestamp)


def pools_or_none(gpus: Sequence[Gpu], settings: Settings) -> tuple[Pool, ...] | None:
    """None if the rules do not fit the node. The agent reports that; the labels show it."""
    try:
        return catalogue(gpus, settings.rules).pools
    except SlicingError:
        return None


def _gpus_behind_placeholders(
    nvml: Nvml | None, platform: Platform, settings: Settings
) -> tuple[Gpu, ...]:
    if platform is Platform.TEGRA:
        return own_gpus(Inventory("", cuda_gpus(_TEGRA)), settings).gpus
    if nvml is None:
        if settings.fail_on_init_error:
            raise NodeUnreadable("the NVIDIA driver is not loaded")
        return ()
    return own_gpus(read_inventory(nvml), settings).gpus
