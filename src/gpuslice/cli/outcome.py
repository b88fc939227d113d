"""How a command ends: 0, or one sentence and 1."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

from gpuslice.config.errors import ConfigError


@contextlib.contextmanager
def exit_with_message(command: str) -> Iterator[None]:
    from gpuslice.agent.errors import AgentError

    try:
        yield
    except (AgentError, ConfigError) as error:
        print(f"{command}: {error}", file=sys.stderr)
        sys.exit(1)
