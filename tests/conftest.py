from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# Machines are noisy: time is measured in bench/, not here.
settings.register_profile("gpuslice", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("gpuslice")


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and programs under test inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
