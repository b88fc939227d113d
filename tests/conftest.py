from __future__ import annotations

import os
import signal
import sys
import tempfile

from hypothesis import HealthCheck, settings

from tests.surroundings import SCRATCH, neutral

# Machines are noisy: time is measured in bench/, not here. Equal code gives equal examples, so a
# change is not refused for what another one brought in.
settings.register_profile(
    "gpuslice", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("gpuslice")


def pytest_configure() -> None:
    """A shell starts background jobs with SIGINT ignored, and programs under test inherit that, as
    they do its variables and its umask."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in os.environ.keys() - neutral(os.environ).keys():
        del os.environ[name]
    os.umask(0o022)
    # Tests start hundreds of Python processes. Without bytecode, each compiles all its modules.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    os.environ["TMPDIR"] = str(SCRATCH)
    tempfile.tempdir = None  # it reads the variable once
