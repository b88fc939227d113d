"""Runs the demo from beginning to end."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from gpuslice.report.demo.stage import Stage
from gpuslice.report.demo.story import linger, tell
from gpuslice.report.demo.view import View
from gpuslice_sim.errors import SimError


class DemoError(Exception):
    """The demo cannot be shown as asked; the text says why."""


def run_demo(profile: str, pods: Sequence[int], *, keep: bool) -> None:
    # As with Ctrl-C: whatever runs is stopped and removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View()
    try:
        with Stage(profile) as stage:
            if any(gpu.mig for gpu in stage.gpus):
                raise DemoError(f"profile {profile!r} has MIG cards, whose memory is cut already")
            tell(stage, view, pods)
            if keep:
                linger(stage, view)
    except SimError as error:
        raise DemoError(str(error)) from error
    except KeyboardInterrupt:
        view.say("\nstopped, nothing is left behind")
