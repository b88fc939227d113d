from __future__ import annotations

from gpuslice.config.settings import HealthSettings
from gpuslice.gpus.health import HealthWatch, Trouble
from gpuslice.gpus.nvml import Nvml


def test_a_machine_whose_gpus_have_no_identity_is_not_watched() -> None:
    """Its driver may know no events at all, which must not make the stand-in unhealthy."""
    troubles: list[Trouble] = []
    watch = HealthWatch(Nvml(), {}, troubles.append, HealthSettings())
    watch.start()
    assert watch.stop()
    assert troubles == []
