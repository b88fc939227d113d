from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuslice_sim.node import SimNode, create
from gpuslice_sim.process import BackgroundProcess
from tests.timing import timing
from tests.unit.cluster.kubernetes import Kubernetes

Once = Callable[..., subprocess.CompletedProcess[str]]
Start = Callable[..., BackgroundProcess]

BIN = Path(sys.executable).parent
# Variables of the machine that runs the tests must not decide them.
FOREIGN = ("KUBECONFIG", "NODE_NAME", "POD_NAME", "NAMESPACE", "CONFIG_FILE")


@pytest.fixture
def node(tmp_path: Path) -> SimNode:
    return create(tmp_path / "node", "t4x2")


@pytest.fixture
def once(node: SimNode) -> Once:
    """once("gpuslice", "labels", …): runs to its end."""

    def run(program: str, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BIN / program, *args],
            env=_environment(node) | more,
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    return run


@pytest.fixture
def start(node: SimNode, tmp_path: Path) -> Iterator[Start]:
    """start("gpuslice", "labels", …): runs until it is stopped."""
    with ExitStack() as stack:

        def run(program: str, *args: str) -> BackgroundProcess:
            argv = [str(BIN / program), *args]
            process = BackgroundProcess(argv, env=_environment(node), log=tmp_path / "log")
            return stack.enter_context(process)

        yield run


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()


def _environment(node: SimNode) -> dict[str, str]:
    own = {key: value for key, value in node.env().items() if key not in FOREIGN}
    return own | timing()
