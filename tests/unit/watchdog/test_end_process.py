"""A process is ended only if it is still the one that was decided about."""

from __future__ import annotations

import asyncio
import signal
import subprocess
from collections.abc import Iterator

import pytest

from gpuslice.mps.control import ControlClient, MpsUnavailable
from gpuslice.watchdog import end_process
from gpuslice.watchdog.cgroup_path import ContainerId
from gpuslice.watchdog.end_process import ProcessNotEnded, kill_process, terminate_client
from gpuslice.watchdog.process_files import ContainedProcess, ProcessId, read_process_id

CONTAINER = ContainerId("uid", "a" * 64)


class Daemon(ControlClient):
    """Answers from a table, and keeps what it was asked."""

    def __init__(self, answers: dict[str, str]) -> None:
        super().__init__("/pipe", 1.0)
        self._answers = answers
        self.asked: list[str] = []

    async def command(self, line: str, timeout_seconds: float | None = None) -> str:
        self.asked.append(line)
        if line not in self._answers:
            raise MpsUnavailable("no daemon")
        return self._answers[line]


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "600"]) as running:
        yield running
        running.kill()


def target(process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch) -> ContainedProcess:
    """The process as a container of a pod would have it."""

    def read(pid: int) -> ContainedProcess | None:
        found = read_process_id(pid)
        return None if found is None else ContainedProcess(found, CONTAINER)

    monkeypatch.setattr(end_process, "read_process", read)
    found = read(process.pid)
    assert found is not None
    return found


def test_a_process_is_killed(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    kill_process(target(process, monkeypatch))
    assert process.wait(60) == -signal.SIGKILL


def test_a_process_whose_id_is_used_again_is_not_killed(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = target(process, monkeypatch)
    before = ProcessId(now.process.pid, now.process.started_ticks - 1)
    elsewhere = ContainerId("uid", "b" * 64)
    for other in (
        ContainedProcess(before, CONTAINER),
        ContainedProcess(now.process, elsewhere),
    ):
        with pytest.raises(ProcessNotEnded):
            kill_process(other)
        daemon = Daemon({"get_server_list": "7", "get_client_list 7": str(process.pid)})
        with pytest.raises(ProcessNotEnded):
            asyncio.run(terminate_client(other, [daemon]))
        assert not any(line.startswith("terminate") for line in daemon.asked)
    assert process.poll() is None


def test_a_process_that_has_ended_is_not_killed(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = target(process, monkeypatch)
    process.kill()
    process.wait()
    with pytest.raises(ProcessNotEnded):
        kill_process(found)


def test_the_daemon_whose_client_it_is_ends_its_contexts(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid = process.pid
    down = Daemon({})
    other = Daemon({"get_server_list": "6", "get_client_list 6": f"1{pid}\n{pid}0"})
    own = Daemon(
        {
            "get_server_list": "7\n8",
            "get_client_list 7": "",
            "get_client_list 8": f"1\n{pid}",
            f"terminate_client 8 {pid}": "0",
        }
    )
    asyncio.run(terminate_client(target(process, monkeypatch), [down, other, own]))
    assert own.asked[-1] == f"terminate_client 8 {pid}"
    assert other.asked == ["get_server_list", "get_client_list 6"]


def test_an_answer_that_is_no_success_is_a_failure(
    process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's program exits with 0 in any case."""
    answers = {"get_server_list": "7", "get_client_list 7": str(process.pid)}
    answers[f"terminate_client 7 {process.pid}"] = "Server 7 not found!\n1"
    with pytest.raises(ProcessNotEnded, match="Server 7 not found"):
        asyncio.run(terminate_client(target(process, monkeypatch), [Daemon(answers)]))
