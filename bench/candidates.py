"""The device plugins that are measured."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from bench.measure import Candidate, Case

GPU_MIB = 81920

_PROGRAMS = Path(sys.executable).parent
_HERE = Path(__file__).resolve().parent


def _memory_units(case: Case, directory: Path) -> list[str]:
    del directory
    unit = f"{max(1, round(case.gpus * GPU_MIB / case.devices))}MiB"
    program = str(_PROGRAMS / "gpuslice")
    return [program, "agent", "--memory-unit", unit, "--log-level", "warning"]


def _bare(case: Case, directory: Path) -> list[str]:
    del directory
    program = str(_HERE / "bare_plugin.py")
    return [sys.executable, program, "{kubelet_socket}", str(case.devices)]


def _drop_in(case: Case, directory: Path) -> list[str]:
    program = str(_PROGRAMS / "nvidia-device-plugin")
    return [program, *_config(case, directory), "--log-level", "warning"]


GPUSLICE = Candidate("gpuslice", _memory_units)
# The cost of the transport.
BARE = Candidate("bare grpcio", _bare)
# The same agent with NVIDIA's command line: whole GPUs and replicas.
DROP_IN = Candidate("gpuslice", _drop_in)


def nvidia() -> Candidate:
    """NVIDIA's plugin. Time-slicing replicas give the wanted number of devices."""
    from tests.peers.build import PeerBuildError, build_peers

    try:
        program = str(build_peers(["nvidia-device-plugin"]).device_plugin)
    except PeerBuildError as error:
        raise SystemExit(f"{error}\n(or measure with --without-nvidia)") from error
    if os.geteuid() != 0:
        raise SystemExit(
            "NVIDIA's plugin has a fixed socket directory, so it runs in a mount namespace, which "
            "requires root (or measure with --without-nvidia)"
        )

    def command(case: Case, directory: Path) -> list[str]:
        return [program, *_config(case, directory)]

    return Candidate("NVIDIA 0.19.0", command, private_directory=True)


def _config(case: Case, directory: Path) -> list[str]:
    """Flags for replicas of the GPUs, with the same file for both plugins. None for whole GPUs."""
    if case.devices <= case.gpus:
        return []
    file = directory / "nvidia.json"
    resources = [{"name": "nvidia.com/gpu", "replicas": case.per_gpu}]
    file.write_text(
        json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": resources}}})
    )
    return ["--config-file", str(file)]
