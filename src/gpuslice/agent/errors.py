"""What ends the agent."""

from __future__ import annotations


class AgentError(Exception):
    """The agent cannot go on; the text says what an operator can do about it."""
