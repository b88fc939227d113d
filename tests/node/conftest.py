from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuslice_sim.kubelet import CdiRuntime, Kubelet
from gpuslice_sim.mps.launch import kill
from gpuslice_sim.node import create
from tests.surroundings import SCRATCH, remove_directory

from .mps_programs import running
from .rig import Rig

MakeRig = Callable[..., Rig]


@pytest.fixture
def short_path() -> Iterator[Path]:
    """Like tmp_path, but short enough for paths of sockets. Logs are shown if the test fails."""
    path = Path(tempfile.mkdtemp(prefix="gs-", dir=SCRATCH))
    yield path
    for log in sorted(path.glob("*.log")):  # pytest shows output only if the test failed
        print(f"--- {log.name}\n{log.read_text(errors='replace')}")
    remove_directory(path)


@pytest.fixture
def make_rig(short_path: Path) -> Iterator[MakeRig]:
    """make_rig("t4x2", driver=570): a node of that profile and a running kubelet.

    With `cdi`, its container runtime applies CDI specifications.
    """
    kubelets: list[Kubelet] = []
    runtimes = ExitStack()

    def make(profile: str = "t4x2", *, driver: int = 570, cdi: bool = False) -> Rig:
        node = create(short_path / "node", profile, driver=driver)
        kubelet = Kubelet(
            short_path / "device-plugins",
            pod_resources=short_path / "pod-resources" / "kubelet.sock",
            runtime=runtimes.enter_context(CdiRuntime(short_path / "cdi")) if cdi else None,
        )
        kubelet.start()
        kubelets.append(kubelet)
        return Rig(node, kubelet, short_path)

    yield make
    for kubelet in kubelets:
        kubelet.stop()
    runtimes.close()


@pytest.fixture
def rig(make_rig: MakeRig) -> Rig:
    return make_rig("t4x2")


@pytest.fixture
def no_daemon_stays(short_path: Path) -> Iterator[None]:
    """Daemons have no parent here, and would outlive a test that failed."""
    yield
    for pid in running(short_path / "m").values():
        kill(pid)
