"""What can go wrong between the agent and the API server."""

from __future__ import annotations


class ClusterError(OSError):
    """The API server is away, refuses, or answers what it should not."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        # The HTTP status, where there was an answer.
        self.status = status
