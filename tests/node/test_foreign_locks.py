"""Another process holds a lock on a directory that the agent writes to."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from gpuslice.codes import Code
from gpuslice_sim.kubelet import AdmissionError, Container, Pod

from .rig import GPU, RESOURCE, Rig


@contextmanager
def locked(directory: Path) -> Iterator[int]:
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def test_a_lock_on_the_nested_directory_refuses_allocate_and_stops_nothing_else(rig: Rig) -> None:
    directory = rig.directory / "nested"
    flags = ("--nested=host", f"--nested-dir={directory}")
    with rig.plugin(*flags) as plugin:
        rig.kubelet.wait_for(GPU)
        with locked(directory):
            with pytest.raises(AdmissionError, match=Code.NESTED_FILE_NOT_WRITTEN) as refused:
                rig.kubelet.admit(Pod("node", [Container("main", {GPU: 1})]))
            assert f"process {os.getpid()}" in str(refused.value)
            # The event loop answers meanwhile.
            rig.node.faults.xid(0, 79)
            rig.wait_for_healthy(GPU, {rig.node.gpus()[1].uuid})
        [given] = rig.kubelet.admit(Pod("later", [Container("main", {GPU: 1})]))
        assert Path(given.response.mounts[0].host_path).exists()
        assert plugin.logged(Code.NESTED_FILE_NOT_WRITTEN) == 1


def test_a_lock_on_the_directory_of_the_kubelet_is_reported_with_its_holder(rig: Rig) -> None:
    with locked(rig.kubelet.directory) as lock, rig.agent() as agent:
        [line] = agent.wait_for_code(Code.DIRECTORY_LOCKED)
        assert f"process {os.getpid()}" in line
        assert rig.kubelet.registrations == 0
        fcntl.flock(lock, fcntl.LOCK_UN)
        rig.kubelet.wait_for(RESOURCE)
        assert agent.stop() == 0


def test_sigterm_ends_an_agent_that_waits_for_a_lock(rig: Rig) -> None:
    with locked(rig.kubelet.directory), rig.agent() as agent:
        agent.wait_for_code(Code.ADVERTISED)
        assert agent.stop() == 0
