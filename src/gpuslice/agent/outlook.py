"""What settings mean for a node whose GPUs are not found."""

from __future__ import annotations

from gpuslice.agent.driver import NoDriver
from gpuslice.config.settings import Settings


def waits(settings: Settings, problem: Exception) -> bool:
    """Whether a program that begins waits for GPUs; otherwise it ends."""
    if isinstance(problem, NoDriver) or not settings.wait_for_devices:
        return not settings.fail_on_init_error
    return True


def finds_otherwise(settings: Settings, before: Settings) -> bool:
    """Whether these settings look for GPUs elsewhere."""
    return (settings.discovery, settings.cdi.container_driver_root) != (
        before.discovery,
        before.cdi.container_driver_root,
    )
