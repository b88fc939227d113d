from __future__ import annotations

from gpuslice.config.settings import HealthSettings
from gpuslice.config.timing import Timing
from gpuslice.gpus.faults import Fault
from gpuslice.gpus.health import HealthWatch
from gpuslice.gpus.nvml import Nvml
from gpuslice.slicing.notice import Notice


class RecordingReporter:
    def __init__(self) -> None:
        self.starts = 0
        self.faults: list[Fault] = []
        self.notices: list[Notice] = []

    def watch_started(self) -> None:
        self.starts += 1

    def fault(self, fault: Fault) -> None:
        self.faults.append(fault)

    def notice(self, notice: Notice) -> None:
        self.notices.append(notice)


def test_placeholders_for_gpus_are_not_watched() -> None:
    """The driver of such a machine may have no events, which is no fault of the placeholder."""
    reporter = RecordingReporter()
    watch = HealthWatch(Nvml(), {}, HealthSettings(), reporter, Timing())
    watch.start()
    assert watch.stop()
    assert reporter.starts == 1
    assert reporter.faults == []
    assert reporter.notices == []
