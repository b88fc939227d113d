from __future__ import annotations

from gpuslice.config.settings import HealthSettings
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.health import HealthWatch
from gpuslice.gpus.nvml import LimitedCalls, Nvml
from gpuslice.slicing.notice import Notice


class RecordingReporter:
    def __init__(self) -> None:
        self.unwatched_faults: list[tuple[Fault, ...]] = []
        self.faults: list[Fault] = []
        self.notices: list[Notice] = []

    def unwatched(self, faults: tuple[Fault, ...]) -> None:
        self.unwatched_faults.append(faults)

    def fault(self, fault: Fault) -> None:
        self.faults.append(fault)

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)


def test_placeholders_for_gpus_are_not_watched() -> None:
    """The driver of such a machine may have no events, which is no fault of the placeholder."""
    reporter = RecordingReporter()
    watch = HealthWatch(Nvml(LimitedCalls()), {}, HealthSettings(), reporter, Timing())
    watch.start()
    assert watch.stop()
    assert reporter.unwatched_faults == [()]
    assert reporter.faults == []
    assert reporter.notices == []
