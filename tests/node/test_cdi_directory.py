"""The directory of CDI specifications, when it is full and when the agent ends."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuslice.codes import Code

from .conftest import MakeRig
from .rig import GPU, Rig, needs_root

SPEC = "k8s.device-plugin.nvidia.com-gpu.json"


@contextmanager
def small_directory(path: Path) -> Iterator[Path]:
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(path)], check=True)
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill(directory: Path) -> Path:
    file = directory / "other"
    with file.open("wb", buffering=0) as target:
        try:
            while True:
                target.write(b"\0" * 4096)
        except OSError:
            return file


def flags(rig: Rig, cdi: Path) -> tuple[str, ...]:
    return (
        "--device-list-strategy=cdi-cri",
        f"--cdi-directory={cdi}",
        f"--driver-root-ctr-path={rig.node.root}",
    )


@needs_root
def test_a_full_directory_does_not_affect_devices_that_it_describes(make_rig: MakeRig) -> None:
    rig = make_rig("v100x4")
    uuids = [gpu.uuid for gpu in rig.node.gpus()]
    with (
        small_directory(rig.directory / "cdi") as cdi,
        rig.plugin(*flags(rig, cdi), places={}) as agent,
    ):
        rig.wait_for_resources(GPU)
        rig.wait_for_healthy(GPU, set(uuids))
        before = (cdi / SPEC).read_bytes()
        file = fill(cdi)
        rig.node.faults.unplug(3)
        agent.wait_for_code(Code.CDI_SPEC_OUTDATED, "No space left")
        rig.kubelet.wait_until(lambda: set(rig.advertised()[GPU]) == set(uuids[:3]), "three GPUs")
        assert rig.healthy(GPU) == set(uuids[:3])
        assert (cdi / SPEC).read_bytes() == before
        # A device that the old file does not describe is unhealthy, and no other.
        added = rig.node.faults.add_gpu("v100").uuid
        agent.wait_for_code(Code.CDI_DEVICE_MISSING, f"uuid={added}")
        assert rig.healthy(GPU) == set(uuids[:3])
        file.unlink()
        rig.wait_for_healthy(GPU, {*uuids[:3], added})
        assert (cdi / SPEC).read_bytes() != before
        assert agent.logged(Code.RECONCILE_FAILED) == 0


@needs_root
def test_no_specification_is_written_after_those_of_the_agent_are_removed(rig: Rig) -> None:
    """SIGHUP makes a plan, which writes; SIGTERM comes at any moment of it."""
    cdi = rig.directory / "cdi"
    for attempt in range(5):
        more = (*flags(rig, cdi), "--cdi-remove-on-exit=true")
        with rig.plugin(*more, places={}, name=f"plugin-{attempt}") as agent:
            agent.wait_for_code(Code.REGISTERED)
            (cdi / SPEC).unlink()
            agent.send(signal.SIGHUP)
            assert agent.stop() == 0
            assert list(cdi.iterdir()) == []
