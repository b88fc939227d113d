"""Compiles the C parts of the simulation when the package is installed, even in editable mode."""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

HERE = Path(__file__).parent
NATIVE = HERE / "native"
OUTPUT = HERE / "src" / "gpuslice_sim" / "_native"
CFLAGS = ["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-D_GNU_SOURCE"]


class CompileNative(BuildHookInterface[Any]):
    """Builds the driver library, a libcuda placeholder and the static programs."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        del version
        cc = compiler()
        OUTPUT.mkdir(parents=True, exist_ok=True)
        stubs = OUTPUT / "nvml_stubs.c"
        stubs.write_text(stub_source(NATIVE / "nvml"))
        library = ["-shared", "-fPIC", "-fvisibility=hidden", "-pthread"]
        run(
            cc, *CFLAGS, *library, "-Wl,-soname,libnvidia-ml.so.1", "-I", NATIVE / "common",
            *sources("nvml"), *sources("common"), stubs, "-o", OUTPUT / "libnvidia-ml.so",
        )  # fmt: skip
        run(
            cc, *CFLAGS, *library, "-Wl,-soname,libcuda.so.1",
            *sources("libcuda"), "-o", OUTPUT / "libcuda.so",
        )  # fmt: skip
        for part, program in (("simcuda", "simcuda"), ("mps_control", "mps-control")):
            run(
                cc, *CFLAGS, "-static", "-I", NATIVE / "common",
                *sources(part), *sources("common"), "-o", OUTPUT / program,
            )  # fmt: skip
        stubs.unlink()
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-linux_{platform.machine()}"


def compiler() -> list[str]:
    cc = shlex.split(os.environ.get("CC", "cc"))
    if not cc or shutil.which(cc[0]) is None:
        raise SystemExit(
            f"gpuslice-sim requires a C compiler, but {' '.join(cc) or 'CC'!r} is not on PATH: "
            "install one (Debian: apt-get install gcc libc6-dev) or set CC"
        )
    return cc


def sources(part: str) -> list[Path]:
    return sorted((NATIVE / part).glob("*.c"))


def stub_source(nvml: Path) -> str:
    """Functions for every NVML name that no C file defines. They return NOT_SUPPORTED.

    All names must exist, because programs bind names lazily and exit if one is missing.
    """
    written = "\n".join(path.read_text() for path in sorted(nvml.glob("*.c")))
    names = (nvml / "names.txt").read_text().split()
    missing = [name for name in names if f"{name}(" not in written]
    lines = [
        f'__attribute__((visibility("default"))) int {name}(void) {{ return 3; }}'
        for name in missing
    ]
    return "\n".join(lines) + "\n"


def run(cc: list[str], *args: str | Path) -> None:
    command = [*cc, *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)}\nfailed:\n{done.stderr}")
