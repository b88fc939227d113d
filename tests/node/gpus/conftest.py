from __future__ import annotations

import base64
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuslice_sim.node import SimNode, create

MakeNode = Callable[..., SimNode]
Evaluate = Callable[..., Any]

PRELUDE = """
import base64, pickle
from pathlib import Path
from gpuslice.config.settings import Discovery
from gpuslice.gpus.fingerprint import changes, fingerprint, of_inventory
from gpuslice.gpus.pci import gpu_functions
from gpuslice.gpus.inventory import read_inventory
from gpuslice.gpus.library import find_nvml
from gpuslice.gpus.nvml import DriverUnavailable, Nvml
from gpuslice.gpus.platform import detect, placeholder_inventory
from gpuslice.gpus.topology import read_topology
from gpuslice_sim.node import SimNode

node = SimNode.open(Path({directory!r}))
sysfs, proc = node.root / "sys", node.root / "proc"
"""


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """make_node("t4x2", driver=570)"""

    def make(profile: str = "t4x2", *, driver: int = 570) -> SimNode:
        return create(tmp_path / "node", profile, driver=driver)

    return make


@pytest.fixture
def evaluate() -> Evaluate:
    """evaluate(node, code): what `code` assigns to `result`, in a process of its own.

    A process can load one driver library only, and each node has its own.
    """

    def run(node: SimNode, code: str, *, env: dict[str, str] | None = None) -> Any:
        prelude = PRELUDE.format(directory=str(node.directory))
        show = "print(base64.b64encode(pickle.dumps(result)).decode())"
        done = subprocess.run(
            [sys.executable, "-c", f"{prelude}\n{code}\n{show}"],
            env={"LD_LIBRARY_PATH": str(node.lib)} if env is None else env,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return pickle.loads(base64.b64decode(done.stdout))

    return run
