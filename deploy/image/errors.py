"""Errors of building an image."""

from __future__ import annotations


class ImageBuildError(Exception):
    """The image cannot be built. The message names the remedy."""
