"""The programs as the installer links them.

Each ignores SIGHUP before it imports anything else. SIGHUP means "reload" here, and would end a
process that has no handler yet; imports take most of the time until then. Nothing is lost: the
settings are read later.
"""

from __future__ import annotations

import signal
import sys


def gpuslice() -> None:
    if sys.argv[1:2] in (["agent"], ["labels"], ["mps"]):  # the others end with their terminal
        _ignore_reloads()
    from gpuslice.cli.main import main

    main()


def gpushare_device_plugin() -> None:
    _ignore_reloads()
    from gpuslice.cli.gpushare import main

    main()


def nvidia_device_plugin() -> None:
    _ignore_reloads()
    from gpuslice.cli.nvidia import main

    main()


def gpu_feature_discovery() -> None:
    _ignore_reloads()
    from gpuslice.cli.labels import main

    main()


def config_manager() -> None:
    """Has no settings to reload, so SIGHUP ends it."""
    from gpuslice.cli.config_manager import main

    main()


def mps_control_daemon() -> None:
    _ignore_reloads()
    from gpuslice.cli.mps_control_daemon import main

    main()


def _ignore_reloads() -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
