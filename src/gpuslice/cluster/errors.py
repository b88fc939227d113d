"""Errors of the API server."""

from __future__ import annotations


class ClusterError(OSError):
    """The API server does not answer, rejects a request, or sends an invalid response."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        # The HTTP status, if there was a response.
        self.status = status
