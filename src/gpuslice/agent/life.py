"""Runs a program of ours to its end, and makes one error of what a task group had to say."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from gpuslice.agent.driver import DriverReplaced
from gpuslice.agent.errors import AgentError
from gpuslice.config.errors import ConfigError
from gpuslice.kubelet.endpoint import EndpointError


def live(program: Coroutine[Any, Any, None]) -> None:
    """Raises AgentError or ConfigError if the program cannot do its work."""
    failure: BaseException | None = None
    try:
        asyncio.run(program)
    except* (AgentError, EndpointError, DriverReplaced) as failures:
        failure = AgentError("; ".join(str(error) for error in _leaves(failures)))
    except* ConfigError as failures:
        failure = next(_leaves(failures))
    # Not raised from within, where Python 3.11.2 would wrap it in a group.
    if failure is not None:
        raise failure


def _leaves(group: BaseExceptionGroup[BaseException]) -> Iterator[BaseException]:
    for error in group.exceptions:
        if isinstance(error, BaseExceptionGroup):
            yield from _leaves(error)
        else:
            yield error
