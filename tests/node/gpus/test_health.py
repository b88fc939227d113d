"""Which faults the health watch reports, and for which GPU."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuslice.config.settings import HealthSettings
from gpuslice_sim.node import SimNode
from tests.timing import timing

from .conftest import MakeNode

WATCHER = str(Path(__file__).with_name("watcher.py"))


class Watch:
    """A process with a health watch in it."""

    def __init__(self, node: SimNode, settings: HealthSettings, **times: float) -> None:
        self.node = node
        self.lines: list[str] = []
        self._process = subprocess.Popen(
            [sys.executable, WATCHER, str(node.root), repr(settings)],
            env=node.env() | timing(**times),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        self.lines.extend(line.rstrip("\n") for line in self._process.stdout)

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def begin(self) -> None:
        self.go()
        self.wait_for("watching")

    def wait_for(self, text: str, seconds: float = 90.0) -> str:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for line in self.lines:
                if text in line:
                    return line
            time.sleep(0.02)
        raise TimeoutError(f"{text!r} was not printed: {self.lines}")

    def freeze(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def faults(self) -> list[str]:
        return [line for line in self.lines if line.startswith("<")]

    def notices(self) -> list[str]:
        return [line for line in self.lines if line.startswith("notice")]

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def end(self) -> None:
        """Stops the watch, which must leave the driver."""
        self.go()
        assert self._process.wait(90) == 0
        self._reader.join(90)
        assert self.lines[-1] == "left the driver: True"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        self._reader.join(90)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                stream.close()


StartWatch = Callable[..., Watch]


@pytest.fixture
def prepare_watch() -> Iterator[StartWatch]:
    """The inventory is read, and the watch has not started."""
    watches: list[Watch] = []

    def prepare(node: SimNode, settings: HealthSettings = HealthSettings()) -> Watch:  # noqa: B008
        watches.append(Watch(node, settings))
        return watches[-1]

    yield prepare
    for watch in watches:
        watch.close()


@pytest.fixture
def start_watch(prepare_watch: StartWatch) -> StartWatch:
    def start(node: SimNode, settings: HealthSettings = HealthSettings()) -> Watch:  # noqa: B008
        watch = prepare_watch(node, settings)
        watch.begin()
        return watch

    return start


def settled(watch: Watch, gpu: int) -> None:
    """Events are handled in order: after the last one is reported, the others are handled."""
    watch.node.faults.xid(gpu, 999)
    watch.wait_for("XID 999")


def test_a_fatal_error_is_reported_for_its_gpu(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("v100x4"))
    watch.node.faults.xid(2, 79)
    assert watch.wait_for("XID") == "<2 XID 79 None/None> XID 79"
    watch.end()
    assert len(watch.faults()) == 1
    assert watch.notices() == []


def test_errors_that_occur_while_the_watch_stops_are_reported(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    xids = range(200, 400)
    watch.freeze()
    for xid in xids:
        watch.node.faults.xid(0, xid)
    watch.go()
    watch.thaw()
    watch.end()
    assert [int(line.split()[2]) for line in watch.faults()] == [*xids]


def test_errors_of_applications_and_memory_counts_are_not_reported(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    for xid in (13, 31, 43, 45, 68, 109):
        watch.node.faults.xid(0, xid)
    watch.node.faults.ecc(0, corrected=1, uncorrected=1)
    settled(watch, 1)
    assert watch.faults() == ["<1 XID 999 None/None> XID 999"]


@pytest.mark.parametrize(
    ("settings", "reported"),
    [
        (HealthSettings(ignored=frozenset({48})), [79]),
        (HealthSettings(fatal=frozenset({13})), [13, 48, 79]),
        (HealthSettings(fatal=None), [13, 48, 79]),
        (HealthSettings(ignore_all=True, fatal=frozenset({48, 999})), [48]),
    ],
)
def test_the_settings_decide_what_is_reported(
    settings: HealthSettings,
    reported: list[int],
    make_node: MakeNode,
    start_watch: StartWatch,
) -> None:
    watch = start_watch(make_node("t4x2"), settings)
    for xid in (13, 48, 79):
        watch.node.faults.xid(0, xid)
    settled(watch, 1)
    found = [int(line.split()[2]) for line in watch.faults()]
    assert found == [*reported, 999]


@pytest.mark.parametrize(
    "settings", [HealthSettings(enabled=False), HealthSettings(ignore_all=True)]
)
def test_nothing_is_watched_if_nothing_is_fatal(
    settings: HealthSettings, make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"), settings)
    assert watch.lines == [
        "the inventory is read",
        "all GPUs are watched",
        "watching with 0 threads",
    ]
    watch.node.faults.xid(0, 79)
    watch.end()
    assert watch.faults() == []


@pytest.mark.parametrize(
    ("gi", "ci", "instance"), [(3, 0, "3/0"), (3, None, "3/None"), (None, None, "None/None")]
)
def test_an_error_of_a_mig_instance_names_the_instance(
    gi: int | None, ci: int | None, instance: str, make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("a100x2-mig-mixed"))
    watch.node.faults.xid(0, 94, gi, ci)
    assert watch.wait_for("XID") == f"<0 XID 94 {instance}> XID 94"


def test_one_error_of_a_gpu_with_many_mig_devices_is_reported_once(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("a100x2-mig-single"))
    watch.node.faults.xid(0, 79)
    settled(watch, 1)
    assert len(watch.faults()) == 2


def test_a_lost_gpu_is_detected_without_an_event_and_reported_once(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    watch.node.faults.lost(1)
    watch.wait_for("<1 GPULost None None/None> the GPU is lost")
    time.sleep(6)  # another probe
    settled(watch, 0)
    assert len(watch.faults()) == 2


def test_a_gpu_lost_between_enumeration_and_watch_is_reported(
    make_node: MakeNode, prepare_watch: StartWatch
) -> None:
    watch = prepare_watch(make_node("t4x2"))
    watch.wait_for("the inventory is read")
    watch.node.faults.lost(0)
    watch.begin()
    watch.wait_for("<0 GPULost None None/None> the GPU is lost")
    settled(watch, 1)
    assert len(watch.faults()) == 2


def test_an_error_of_an_unknown_gpu_affects_those_that_do_not_answer(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("v100x4"))
    watch.node.faults.nameless_events(3)
    watch.node.faults.lost(3)
    watch.node.faults.xid(3, 79)
    watch.wait_for("<3 GPULost")
    settled(watch, 0)
    assert len(watch.faults()) == 2


def test_an_error_of_an_unknown_gpu_affects_all_if_all_answer(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("v100x4"))
    watch.node.faults.nameless_events(3)
    watch.node.faults.xid(3, 79)
    assert watch.wait_for("<") == "<all XID 79 None/None> XID 79 of an unknown GPU"


def test_an_error_of_an_unknown_gpu_is_not_attributed_to_one_that_was_lost_before(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("v100x4"))
    watch.node.faults.lost(0)
    watch.wait_for("<0 GPULost")
    watch.node.faults.nameless_events(3)
    watch.node.faults.xid(3, 79)
    assert watch.wait_for("<all") == "<all XID 79 None/None> XID 79 of an unknown GPU"


def test_a_wait_that_fails_affects_no_gpu_and_is_reported_once_without_a_busy_loop(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    watch.node.faults.event_wait("UNKNOWN")
    watch.wait_for("notice EventWaitFailed")
    before = watch.cpu_seconds()
    time.sleep(3.0)
    assert watch.cpu_seconds() - before < 0.5
    assert len(watch.notices()) == 1
    watch.node.faults.event_wait(None)
    watch.node.faults.xid(1, 79)
    assert watch.wait_for("XID") == "<1 XID 79 None/None> XID 79"
    assert len(watch.faults()) == 1


def test_a_wait_that_fails_for_a_lost_gpu_affects_that_gpu_and_others_stay_watched(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    watch.node.faults.lost(0)
    watch.node.faults.event_wait("GPU_IS_LOST")
    watch.wait_for("<0 GPULost")
    watch.node.faults.event_wait(None)
    # Events are lost with the old event set, and nothing shows when the new one is ready.
    for xid in itertools.count(200):
        watch.node.faults.xid(1, xid)
        with contextlib.suppress(TimeoutError):
            watch.wait_for("<1 XID", 1.0)
            break
        assert xid < 290
    watch.end()
    assert len([line for line in watch.faults() if not line.startswith("<1 XID")]) == 1


@pytest.mark.parametrize("call", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"])
def test_a_gpu_that_reports_no_xids_is_healthy_with_a_notice(
    call: str, make_node: MakeNode, start_watch: StartWatch
) -> None:
    node = make_node("t4x2")
    node.faults.call(0, call, "NOT_SUPPORTED")
    watch = start_watch(node)
    assert re.match(r"notice NoXIDEvents: GPU 0 \(GPU-\S+\)", watch.notices()[0])
    settled(watch, 1)
    assert len(watch.faults()) == 1


@pytest.mark.parametrize("call", ["nvmlDeviceRegisterEvents", "nvmlDeviceGetSupportedEventTypes"])
def test_a_gpu_whose_errors_cannot_be_watched_is_reported(
    call: str, make_node: MakeNode, start_watch: StartWatch
) -> None:
    node = make_node("t4x2")
    node.faults.call(0, call, "UNKNOWN")
    watch = start_watch(node)
    watch.wait_for("<0 GPUNotWatched")
    settled(watch, 1)
    assert len(watch.faults()) == 2


def test_a_gpu_that_fails_several_probes_is_lost(
    make_node: MakeNode, start_watch: StartWatch
) -> None:
    watch = start_watch(make_node("t4x2"))
    watch.node.faults.call(0, "nvmlDeviceGetUUID", "UNKNOWN")
    # A failing wait probes every time, which makes the test faster.
    watch.node.faults.event_wait("UNKNOWN")
    watch.wait_for("<0 GPULost None None/None> the GPU does not answer")
    assert len(watch.faults()) == 1
