"""What building an image can fail with."""

from __future__ import annotations


class ImageBuildError(Exception):
    """The image cannot be built; the message names the remedy."""
