"""Looks at the node and says what it is to be labelled with."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from gpuslice.config.settings import Settings
from gpuslice.gpus.allocated_devices import own_part
from gpuslice.gpus.cuda import CudaError, cuda_gpus
from gpuslice.gpus.inventory import Inventory, read_inventory
from gpuslice.gpus.library import find_nvml
from gpuslice.gpus.node_facts import NodeFacts, read_facts
from gpuslice.gpus.nvml import DriverUnavailable, Nvml, NvmlError
from gpuslice.gpus.platform import Platform, detect
from gpuslice.labels.errors import NodeUnreadable
from gpuslice.labels.labels import labels_of
from gpuslice.slicing.catalogue import Catalogue, catalogue
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.gpu import Gpu
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

_TEGRA = "tegra"


@dataclass(frozen=True, slots=True)
class _Seen:
    facts: NodeFacts
    gpus: tuple[Gpu, ...] = ()


class Look:
    """Opens the driver anew each time, since NVML enumerates at initialisation only."""

    def __init__(
        self,
        settings: Settings,
        timestamp: int | None,
        sysfs: Path = Path("/sys"),
        proc: Path = Path("/proc"),
    ) -> None:
        self._settings = settings
        self._timestamp = timestamp
        self._sysfs = sysfs
        self._proc = proc
        self._complaint = ""

    def labels(self) -> dict[str, str]:
        """Blocks. Raises NodeUnreadable."""
        try:
            seen = self._see()
        except NvmlError as error:
            raise NodeUnreadable(f"the NVIDIA driver does not answer ({error})") from error
        except CudaError as error:
            raise NodeUnreadable(f"the CUDA driver does not answer ({error})") from error
        offered = self._offered(seen.gpus)
        return labels_of(seen.facts, seen.gpus, offered, self._settings, self._timestamp)

    def _see(self) -> _Seen:
        settings = self._settings
        machine = settings.labels.machine_type_file
        root = Path(settings.cdi.container_driver_root)
        with _driver(root) as driver:
            nvml = driver if isinstance(driver, Nvml) else None
            if detect(settings.discovery, root, nvml) is Platform.TEGRA:
                gpus = self._own(Inventory("", cuda_gpus(_TEGRA)))
                return _Seen(read_facts(None, gpus, machine, self._sysfs), gpus)
            if nvml is not None:
                gpus = self._own(read_inventory(nvml, self._sysfs, self._proc))
                return _Seen(read_facts(nvml, gpus, machine, self._sysfs), gpus)
        if settings.fail_on_init_error:
            raise NodeUnreadable(
                f"the NVIDIA driver cannot be used ({driver}): is this a GPU node with the driver "
                "installed, and does this container run with the nvidia runtime? "
                "--fail-on-init-error=false waits for it"
            )
        return _Seen(read_facts(None, (), machine, self._sysfs))

    def _own(self, inventory: Inventory) -> tuple[Gpu, ...]:
        """A list that cannot be trusted is no reason to label the GPUs of others."""
        try:
            return own_part(inventory, self._settings).gpus
        except SlicingError as error:
            raise NodeUnreadable(str(error)) from error

    def _offered(self, gpus: tuple[Gpu, ...]) -> Catalogue | None:
        """Rules that do not fit the node are the agent's trouble; the labels show it."""
        try:
            offered = catalogue(gpus, self._settings.rules)
        except SlicingError as error:
            self._complain(str(error))
            return None
        self._complaint = ""
        return offered

    def _complain(self, complaint: str) -> None:
        if complaint != self._complaint:
            log.warning("the settings do not fit this node", reason=complaint)
        self._complaint = complaint


@contextlib.contextmanager
def _driver(root: Path) -> Iterator[Nvml | DriverUnavailable]:
    """The driver, or why there is none."""
    try:
        nvml = Nvml.open(find_nvml(root))
    except DriverUnavailable as error:
        yield error
        return
    try:
        yield nvml
    finally:
        with contextlib.suppress(NvmlError):  # as good as closed
            nvml.close()
