"""The container image: `python -m deploy.image` builds it, and so does `build_image`."""

from .build import build_image
from .errors import ImageBuildError
from .project import image_name, read_project

__all__ = ["ImageBuildError", "build_image", "image_name", "read_project"]
