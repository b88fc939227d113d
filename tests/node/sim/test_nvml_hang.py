"""NVML calls that do not return until the fault ends."""

from __future__ import annotations

import pytest

from .conftest import Ask, MakeNode

# Asks in threads: `begin` starts a call, `ended` waits a moment for it.
THREADS = """
import threading
from pathlib import Path
from gpuslice_sim.node import SimNode

faults = SimNode.open(Path({directory!r})).faults
first, second = handles()

def begin(call, *arguments):
    thread = threading.Thread(target=call, args=arguments, daemon=True)
    thread.start()
    return thread

def ended(thread, seconds=0.3):
    thread.join(seconds)
    return not thread.is_alive()
"""


@pytest.mark.parametrize("gpu", [None, 0])
@pytest.mark.parametrize("function", ["", "nvmlDeviceGetName"])
def test_calls_hang_until_the_fault_ends(
    gpu: int | None, function: str, make_node: MakeNode, ask: Ask
) -> None:
    node = make_node("t4x2")
    answer = ask(
        node,
        THREADS.format(directory=str(node.directory))
        + f"""
faults.hang({gpu!r}, {function!r})
calls = [begin(nvmlDeviceGetName, first), begin(nvmlDeviceGetName, second),
         begin(nvmlDeviceGetUUID, first), begin(nvmlSystemGetDriverVersion)]
hung = [not ended(call) for call in calls]
faults.hang({gpu!r}, {function!r}, hangs=False)
answer = hung, [ended(call, 60) for call in calls]
""",
    )
    hung = [True, gpu is None, not function, gpu is None and not function]
    assert answer == [hung, [True] * 4]


def test_a_wait_for_events_in_progress_hangs_beyond_its_time(make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    answer = ask(
        node,
        THREADS.format(directory=str(node.directory))
        + """
wait = begin(code, nvmlEventSetWait_v2, nvmlEventSetCreate(), 200)
faults.hang()
hung = not ended(wait, 1.0)
faults.hang(hangs=False)
answer = hung, ended(wait, 60)
""",
    )
    assert answer == [True, True]


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlShutdown"])
def test_opening_and_closing_can_hang(function: str, make_node: MakeNode, ask: Ask) -> None:
    node = make_node("t4x2")
    answer = ask(
        node,
        THREADS.format(directory=str(node.directory))
        + f"""
faults.hang(function={function!r})
call = begin({function})
hung = not ended(call)
faults.hang(function={function!r}, hangs=False)
answer = hung, ended(call, 60)
""",
    )
    assert answer == [True, True]
