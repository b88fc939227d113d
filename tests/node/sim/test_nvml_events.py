"""Events reach those who wait for them, at run time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pynvml
import pytest

from gpuslice_sim.node import SimNode

from .conftest import PRELUDE, Ask, MakeNode

XID = pynvml.nvmlEventTypeXidCriticalError
LISTEN = """
nvmlInit()
events = nvmlEventSetCreate()
for handle in handles():
    nvmlDeviceRegisterEvents(handle, nvmlEventTypeXidCriticalError, events)
def tell(thing):
    print(json.dumps(thing), flush=True)
tell("ready")
for _ in range(int(sys.argv[1])):
    try:
        e = nvmlEventSetWait_v2(events, 60000)
        uuid = nvmlDeviceGetUUID(e.device) if sys.argv[2] == "uuid" else ""
        tell([uuid, e.eventType, e.eventData, e.gpuInstanceId, e.computeInstanceId])
    except NVMLError as error:
        tell(error.value)
"""


class Listener:
    """A process that prints what its event set gets."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert self.next() == "ready"

    def next(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, "the listener ended"
        return json.loads(line)


@contextmanager
def listening(node: SimNode, events: int, show: str = "uuid") -> Iterator[Listener]:
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + LISTEN, str(events), show],
        env={"LD_LIBRARY_PATH": str(node.lib)},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Listener(process)
    finally:
        process.kill()
        process.communicate()


def test_two_processes_both_get_each_event_once_and_in_order(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    first, second = (gpu.uuid for gpu in node.gpus())
    with listening(node, 3) as one, listening(node, 3) as two:
        node.faults.xid(1, 79)
        node.faults.xid(first, 31)
        node.faults.xid(second[:12], 48)
        whole = 0xFFFFFFFF
        expected = [[second, XID, 79, whole, whole], [first, XID, 31, whole, whole],
                    [second, XID, 48, whole, whole]]  # fmt: skip
        for listener in (one, two):
            assert [listener.next() for _ in range(3)] == expected


def test_an_event_of_a_mig_instance_names_it(make_node: MakeNode) -> None:
    node = make_node("a100x2-mig-mixed")
    with listening(node, 1) as listener:
        node.faults.xid(0, 94, gi=3, ci=0)
        assert listener.next() == [node.gpus()[0].uuid, XID, 94, 3, 0]


def test_what_happened_before_registering_is_not_told(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    node.faults.xid(0, 13)
    with listening(node, 1) as listener:
        node.faults.xid(0, 79)
        assert listener.next()[2] == 79


def test_only_the_registered_types_are_told(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    with listening(node, 1) as listener:
        node.faults.ecc(0, uncorrected=1)
        node.faults.xid(0, 48)
        assert listener.next()[1:3] == [XID, 48]


def test_an_event_of_a_lost_gpu_is_still_told(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    with listening(node, 1, show="no uuid") as listener:
        node.faults.lost(0)
        node.faults.xid(0, 79)
        assert listener.next()[1:3] == [XID, 79]


def test_an_event_may_not_say_whose_it_is(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    node.faults.nameless_events(1)
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
events = nvmlEventSetCreate()
for handle in handles():
    nvmlDeviceRegisterEvents(handle, nvmlEventTypeXidCriticalError, events)
node.faults.xid(0, 79)
node.faults.xid(1, 79)
answer = [bool(nvmlEventSetWait_v2(events, 60000).device) for _ in range(2)]
"""
    assert ask(node, code) == [True, False]


def test_a_failing_wait_ends_waits_under_way_until_it_is_cleared(make_node: MakeNode) -> None:
    node = make_node("t4x2")
    with listening(node, 1) as failing:
        node.faults.event_wait("GPU_IS_LOST")
        assert failing.next() == pynvml.NVML_ERROR_GPU_IS_LOST
    node.faults.event_wait(None)
    with listening(node, 1) as listener:
        node.faults.xid(0, 79)
        assert listener.next()[2] == 79


def test_a_wait_times_out_without_burning_the_processor(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = """
import time
events = nvmlEventSetCreate()
nvmlDeviceRegisterEvents(handles()[0], nvmlEventTypeXidCriticalError, events)
start, burnt = time.monotonic(), time.process_time()
result = code(nvmlEventSetWait_v2, events, 300)
answer = [result, time.monotonic() - start, time.process_time() - burnt,
          code(nvmlEventSetWait_v2, events, 0)]
"""
    result, waited, burnt, at_once = ask(node, code)
    assert result == at_once == pynvml.NVML_ERROR_TIMEOUT
    assert waited >= 0.3
    assert burnt < 0.1


def test_other_threads_work_while_one_waits(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = f"""
import threading
from pathlib import Path
from gpuslice_sim.node import SimNode
events, got = nvmlEventSetCreate(), []
nvmlDeviceRegisterEvents(handles()[0], nvmlEventTypeXidCriticalError, events)
waiter = threading.Thread(target=lambda: got.append(nvmlEventSetWait_v2(events, 60000).eventData))
waiter.start()
names = [nvmlDeviceGetName(h) for h in handles()]
SimNode.open(Path({str(node.directory)!r})).faults.xid(0, 62)
waiter.join(60)
answer = [names, got]
"""
    assert ask(node, code) == [["Tesla T4", "Tesla T4"], [62]]


def test_event_sets_are_independent_and_can_be_freed(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
first, second = handles()
a, b = nvmlEventSetCreate(), nvmlEventSetCreate()
nvmlDeviceRegisterEvents(first, nvmlEventTypeXidCriticalError, a)
nvmlDeviceRegisterEvents(second, nvmlEventTypeXidCriticalError, b)
node.faults.xid(0, 1)
node.faults.xid(1, 2)
got = [nvmlEventSetWait_v2(s, 60000).eventData for s in (a, b)]
nvmlEventSetFree(a)
answer = [got, code(nvmlEventSetWait_v2, a, 0), code(nvmlEventSetFree, a)]
"""
    invalid = pynvml.NVML_ERROR_INVALID_ARGUMENT
    assert ask(node, code) == [[1, 2], invalid, invalid]


@pytest.mark.parametrize(("driver", "newer"), [(535, False), (570, False), (590, True)])
def test_newer_drivers_know_more_event_types(
    driver: int, *, newer: bool, make_node: MakeNode, ask: Ask
) -> None:
    code = """
h, events = handles()[0], nvmlEventSetCreate()
answer = [nvmlDeviceGetSupportedEventTypes(h), code(nvmlDeviceRegisterEvents, h, 0x8000, events)]
"""
    types, registered = ask(make_node("a10x4", driver=driver), code)
    old = pynvml.nvmlEventTypeSingleBitEccError | pynvml.nvmlEventTypeDoubleBitEccError | XID
    assert types & old == old
    assert bool(types & 0x8000) is newer
    assert registered == (0 if newer else pynvml.NVML_ERROR_NOT_SUPPORTED)


@pytest.mark.parametrize(("driver", "expected"), [(590, 3), (615, [XID, 79, 0xFFFFFFFF])])
def test_the_third_wait_came_with_driver_615(
    driver: int, expected: object, make_node: MakeNode, ask: Ask
) -> None:
    node = make_node("t4x2", driver=driver)
    code = f"""
from pathlib import Path
from gpuslice_sim.node import SimNode
node = SimNode.open(Path({str(node.directory)!r}))
events, p = nvmlEventSetCreate(), c_nvmlEventSetWait_v3_t()
nvmlDeviceRegisterEvents(handles()[1], nvmlEventTypeXidCriticalError, events)
node.faults.xid(1, 79)
p.timeoutMs = 60000
answer = code(nvmlEventSetWait_v3, events, p)
if answer == 0:
    assert p.uuid == node.gpus()[1].uuid
    answer = [p.eventType, p.eventData, p.gpuInstanceId]
"""
    assert ask(node, code) == expected


def test_a_recovery_action_is_told_as_xid_154(make_node: MakeNode) -> None:
    node = make_node("h100x8")
    with listening(node, 1) as listener:
        node.faults.recovery_action(3, "GPU_RESET")
        assert listener.next()[:3] == [node.gpus()[3].uuid, XID, 154]
