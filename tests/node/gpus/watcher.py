"""Runs a health watch on the driver it finds and prints what it reports, one line each."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

from gpuslice.config.settings import HealthSettings
from gpuslice.gpus.health import HealthWatch, Trouble
from gpuslice.gpus.inventory import read_inventory
from gpuslice.gpus.nvml import Nvml


def main(root: Path, settings: HealthSettings) -> None:
    nvml = Nvml.open()
    gpus = read_inventory(nvml, root / "sys", root / "proc").gpus
    indices = {gpu.uuid: gpu.index for gpu in gpus}
    # GPUs of the inventory that are gone by now are part of what is tested.
    print("the inventory is read", flush=True)
    sys.stdin.readline()

    def report(trouble: Trouble) -> None:
        gpu = "all" if trouble.uuid is None else indices[trouble.uuid]
        instance = f"{trouble.gpu_instance}/{trouble.compute_instance}"
        print(
            f"<{gpu} {trouble.cause.value} {trouble.xid} {instance}> {trouble.reason}", flush=True
        )

    def note(text: str) -> None:
        print(f"note: {text}", flush=True)

    watch = HealthWatch(nvml, indices, report, settings, note)
    watch.start()
    print(f"watching with {threading.active_count()} threads", flush=True)
    sys.stdin.readline()
    print(f"left the driver: {watch.stop()}", flush=True)
    nvml.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), eval(sys.argv[2]))
