"""Runs a health watch and prints what it reports, one line each."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

from gpuslice.config.settings import HealthSettings
from gpuslice.config.timing import read_timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.health import HealthWatch
from gpuslice.gpus.inventory import read_inventory
from gpuslice.gpus.nvml import Nvml
from gpuslice.slicing.notice import Notice


class Printer:
    def __init__(self, indices: dict[str, int]) -> None:
        self._indices = indices

    def unwatched(self, faults: tuple[Fault, ...]) -> None:
        if not faults:
            print("all GPUs are watched", flush=True)
        for fault in faults:
            self.fault(fault)

    def fault(self, fault: Fault) -> None:
        gpu = "all" if fault.gpu is None else self._indices[fault.gpu]
        instance = f"{fault.gpu_instance}/{fault.compute_instance}"
        print(f"<{gpu} {fault.code} {fault.xid} {instance}> {fault.message}", flush=True)

    def notice(self, notice: Notice) -> None:
        print(f"notice {notice.code}: {notice.message}", flush=True)


def main(root: Path, settings: HealthSettings) -> None:
    nvml = Nvml.open()
    gpus = read_inventory(nvml, root / "sys", root / "proc").gpus
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    # Tests may remove GPUs of the inventory before the watch starts.
    print("the inventory is read", flush=True)
    sys.stdin.readline()

    watch = HealthWatch(nvml, indices, settings, Printer(indices), read_timing(os.environ))
    watch.start()
    threads = [thread.name for thread in threading.enumerate()].count("gpu-health")
    print(f"watching with {threads} threads", flush=True)
    sys.stdin.readline()
    print(f"left the driver: {watch.stop()}", flush=True)
    nvml.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), eval(sys.argv[2]))
