"""Runs the demo."""

from __future__ import annotations

import signal
from collections.abc import Sequence

from gpuslice.report.demo.stage import Stage
from gpuslice.report.demo.story import keep_running, play
from gpuslice.report.demo.view import View
from gpuslice_sim.errors import SimError


class DemoError(Exception):
    """The demo cannot run with these options; the message states why."""


def run_demo(profile: str, pods: Sequence[int], *, keep: bool) -> None:
    # Like Ctrl-C: stops all processes and removes their files.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    view = View()
    try:
        with Stage(profile) as stage:
            if any(gpu.mig for gpu in stage.gpus):
                raise DemoError(
                    f"profile: {profile!r} is not valid: it has GPUs in MIG mode, whose memory is "
                    "divided already; use another profile"
                )
            play(stage, view, pods)
            if keep:
                keep_running(stage, view)
    except SimError as error:
        raise DemoError(str(error)) from error
    except KeyboardInterrupt:
        view.line("\nstopped: all processes and files are removed")
