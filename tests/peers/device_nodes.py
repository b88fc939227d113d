"""The device nodes that a container with a GPU or a MIG device must get: path -> major, minor."""

from __future__ import annotations

from gpuslice_sim.node import SimGpu, SimMig, SimNode

Nodes = dict[str, tuple[int, int]]

CONTROL: Nodes = {
    "/dev/nvidiactl": (195, 255),
    "/dev/nvidia-modeset": (195, 254),
    "/dev/nvidia-uvm": (510, 0),
    "/dev/nvidia-uvm-tools": (510, 1),
}


def of_gpu(gpu: SimGpu) -> Nodes:
    return {f"/dev/nvidia{gpu.minor}": (195, gpu.minor)}


def of_mig(node: SimNode, gpu: SimGpu, mig: SimMig) -> Nodes:
    """The GPU's node, and those of GPU instance and compute instance by the kernel's own list."""
    minors = node.root / "proc" / "driver" / "nvidia-caps" / "mig-minors"
    listed = dict(line.split() for line in minors.read_text().splitlines())
    place = f"gpu{gpu.minor}/gi{mig.gi}"
    own = [int(listed[f"{place}/access"]), int(listed[f"{place}/ci{mig.ci}/access"])]
    caps = {f"/dev/nvidia-caps/nvidia-cap{minor}": (509, minor) for minor in own}
    return of_gpu(gpu) | caps
