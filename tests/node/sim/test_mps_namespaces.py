"""Protocol 3 of the stand-in for MPS: a named server, its namespaces, and their clients."""

from __future__ import annotations

import csv
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuslice_sim.mps.launch import MpsDaemon, daemons_at, wait_until_gone
from gpuslice_sim.mps.simcuda import Outcome

from .mps_rig import GIB, MpsRig, eventually, make_rig

SMS = 40  # of a T4


class Protocol3:
    """A daemon that was started with -p 3."""

    def __init__(self, rig: MpsRig) -> None:
        self.rig = rig
        self.gpu = rig.uuids[0]
        self.daemon: MpsDaemon = rig.daemon()

    def start(self) -> None:
        done = self.daemon.run("-d", "-p", "3", "-m")
        assert (done.returncode, done.stdout) == (0, "")
        [self.daemon.pid] = daemons_at(self.daemon.pipe_directory)

    def __call__(self, text: str) -> str:
        done = self.daemon.run(*text.split())
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def refused(self, text: str) -> str:
        done = self.daemon.run(*text.split())
        assert done.returncode == 1
        return done.stdout.strip()

    def rows(self, text: str) -> list[dict[str, str]]:
        lines = self(f"{text} --format=csv").splitlines()
        return list(csv.DictReader(lines, skipinitialspace=True))

    def create_server(self, limits: str = "", device: str = "") -> None:
        self(f"server create gpu --allowed-devices={device or self.gpu} {limits}")

    def wait_until_ready(self) -> None:
        eventually(lambda: [row["status"] for row in self.rows("server list")] == ["Ready"])

    def run(self, directory: str, *arguments: str, **env: str) -> Outcome:
        pipe = self.daemon.pipe_directory / directory
        return self.rig.run(*arguments, env={"CUDA_MPS_PIPE_DIRECTORY": str(pipe), **env})


@pytest.fixture
def mps(short_path: Path) -> Iterator[Protocol3]:
    mps = Protocol3(make_rig(short_path, driver=615))
    mps.start()
    yield mps
    if daemons_at(mps.daemon.pipe_directory):
        mps("-q")
        wait_until_gone(mps.daemon.pid)


def test_clients_have_the_limits_of_the_namespace_whose_socket_they_use(mps: Protocol3) -> None:
    mps.create_server("--active-thread-percentage=10 --pinned-memory-limit=1G")
    mps("namespace create one --server=gpu --active-thread-percentage=50 --pinned-memory-limit=3G")
    mps("namespace create free --server=gpu")
    mps.wait_until_ready()
    measured = {
        directory: (device["sms"], device["limit_bytes"])
        for directory in ("", "gpu", "gpu/default", "gpu/one", "gpu/free")
        for device in [mps.run(directory, "info").device]
    }
    assert measured == {
        **dict.fromkeys(("", "gpu", "gpu/default"), (4, GIB)),
        "gpu/one": (20, 3 * GIB),
        # A namespace inherits nothing from its server.
        "gpu/free": (SMS, None),
    }


def test_a_client_cannot_choose_other_threads_and_can_only_lower_its_memory(mps: Protocol3) -> None:
    mps.create_server()
    mps("namespace create one --server=gpu --active-thread-percentage=50 --pinned-memory-limit=3G")
    mps.wait_until_ready()
    for memory, limit in (("9G", 3 * GIB), ("1G", GIB)):
        device = mps.run(
            "gpu/one",
            "info",
            CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="100",
            CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=f"{mps.gpu}={memory}",
        ).device
        assert (device["sms"], device["limit_bytes"]) == (20, limit)
    # As measured by NVIDIA: a limit for a GPU that the client does not see drops all of them.
    device = mps.run("gpu/one", "info", CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="7=9G").device
    assert (device["sms"], device["limit_bytes"]) == (20, None)


def test_lists_have_the_documented_columns(mps: Protocol3) -> None:
    mps.create_server("--active-thread-percentage=10")
    mps("namespace create one --server=gpu --pinned-memory-limit=1500M --client-priority=1")
    mps.wait_until_ready()
    [server] = mps.rows("server list")
    directory = mps.daemon.pipe_directory / "gpu"
    assert (server["name"], server["uid"], server["allowed-devices"]) == ("gpu", "0", mps.gpu)
    assert server["pipe-directory"] == str(directory)
    default, one = mps.rows("namespace list")
    assert (default["name"], default["active-thread-percentage"]) == ("default", "10.0")
    assert one == {
        "name": "one",
        "server": "gpu",
        "server-status": "Ready",
        "pinned-memory-limit": "1G",
        "active-thread-percentage": "-",
        "client-priority": "1",
        "pipe-directory": str(directory / "one"),
    }
    env = {"CUDA_MPS_PIPE_DIRECTORY": str(directory / "one")}
    with mps.rig.hold(env=env) as held:
        held.ready()
        [client] = mps.rows("client list")
        assert (client["pid"], client["namespace"]) == (str(held.pid), "one")
        mps(f"client terminate {held.pid}")
        assert held.next_report()["error"] == "CUDA_ERROR_MPS_CLIENT_TERMINATED"


def test_a_namespace_is_changed_and_deleted(mps: Protocol3) -> None:
    mps.create_server()
    mps("namespace create one --server=gpu --active-thread-percentage=50")
    mps.wait_until_ready()
    mps("namespace set one --server=gpu --active-thread-percentage=20")
    assert mps.run("gpu/one", "info").device["sms"] == 8
    mps("namespace delete one --server=gpu")
    assert [row["name"] for row in mps.rows("namespace list")] == ["default"]
    assert not (mps.daemon.pipe_directory / "gpu" / "one").exists()


def test_a_server_without_its_device_exits_and_its_clients_run_without_mps(mps: Protocol3) -> None:
    mps.create_server(device="GPU-00000000-0000-0000-0000-000000000000")
    eventually(lambda: mps.rows("server list") == [])
    assert mps.run("gpu", "info").report["mps"] is False


def test_a_daemon_that_was_killed_leaves_directories_that_the_next_one_uses(mps: Protocol3) -> None:
    mps.create_server()
    mps("namespace create one --server=gpu --active-thread-percentage=50")
    directory = mps.daemon.pipe_directory / "gpu" / "one"
    before = directory.stat().st_ino
    os.kill(mps.daemon.pid, signal.SIGKILL)
    wait_until_gone(mps.daemon.pid)
    mps.start()
    assert mps.rows("server list") == []  # settings end with the daemon
    mps.create_server()
    mps("namespace create one --server=gpu --active-thread-percentage=50")
    mps.wait_until_ready()
    assert directory.stat().st_ino == before
    assert mps.run("gpu/one", "info").device["sms"] == 20


@pytest.mark.parametrize(
    "text",
    [
        "server create Gpu",
        "namespace create one --server=other",
        "namespace delete default --server=gpu",
        "namespace create default --server=gpu",
        "namespace create one --server=gpu --active-thread-percentage=101",
        "namespace create one --server=gpu --pinned-memory-limit=1",
        "client terminate 1",
        "feature describe memacct",
    ],
)
def test_what_is_refused_has_a_status(mps: Protocol3, text: str) -> None:
    mps.create_server()
    assert mps.refused(text)
    assert [row["name"] for row in mps.rows("namespace list")] == ["default"]


def test_a_namespace_socket_takes_no_commands(mps: Protocol3) -> None:
    mps.create_server()
    mps.daemon.pipe_directory /= "gpu/default"
    try:
        assert mps.daemon.run("server", "list").stdout == ""
    finally:
        mps.daemon.pipe_directory = mps.daemon.pipe_directory.parents[1]
