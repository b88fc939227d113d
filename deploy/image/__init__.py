"""Builds the container image: `python -m deploy.image`, or `build_image` from Python."""

from .build import build_image
from .errors import ImageBuildError
from .project import image_name, read_project

__all__ = ["ImageBuildError", "build_image", "image_name", "read_project"]
