from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuslice_sim.node import SimNode, create

from .mps_rig import MpsRig, make_rig

MakeNode = Callable[..., SimNode]
Ask = Callable[..., Any]

PRELUDE = """
import json, os, sys
import pynvml
from pynvml import *

def code(call, *arguments):
    try:
        call(*arguments)
    except NVMLError as error:
        return error.value
    return 0

def handles():
    return [nvmlDeviceGetHandleByIndex(i) for i in range(nvmlDeviceGetCount())]
"""


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """make_node("t4x2", driver=570, name="node"): a node in its own directory."""

    def make(profile: str = "t4x2", *, driver: int = 570, name: str = "node") -> SimNode:
        return create(tmp_path / name, profile, driver=driver)

    return make


@pytest.fixture
def rig(short_path: Path) -> MpsRig:
    """A node with two T4 for MPS daemons and CUDA programs."""
    return make_rig(short_path)


@pytest.fixture
def ask() -> Ask:
    """ask(node, code): what the unmodified pynvml says, in a process that only knows the path.

    The code runs after nvmlInit and assigns `answer`.
    """

    def run(node: SimNode, code: str, *, init: bool = True) -> Any:
        start = "nvmlInit()\n" if init else ""
        script = f"{PRELUDE}\n{start}{code}\nprint(json.dumps(answer))"
        done = subprocess.run(
            [sys.executable, "-c", script],
            env={"LD_LIBRARY_PATH": str(node.lib)},
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    return run
