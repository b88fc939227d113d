"""Builds the image, pushes it if asked to, and prints its path: python -m deploy.image --help"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .build import build_image
from .cache import to_stderr
from .errors import ImageBuildError
from .registry import parse_reference, push_image


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.image",
        description="Build the container image of gpuslice for the architecture of this machine.",
    )
    parser.add_argument(
        "--output",
        type=Path,
        metavar="FILE",
        help="path of the image (default: dist/gpuslice-<version>-<architecture>.tar)",
    )
    parser.add_argument(
        "--name",
        metavar="REGISTRY/NAME:TAG",
        help="name of the image (default: localhost/gpuslice:<version>)",
    )
    parser.add_argument(
        "--push", action="store_true", help="push the image to the registry in its name"
    )
    parser.add_argument(
        "--plain-http", action="store_true", help="the registry serves HTTP without TLS"
    )
    options = parser.parse_args()
    try:
        if options.push and not options.name:
            raise ImageBuildError("the image has no registry to push to: set IMAGE (--name)")
        if options.name:
            parse_reference(options.name)
        archive = build_image(options.output, name=options.name)
        if options.push:
            push_image(archive, options.name, say=to_stderr, plain_http=options.plain_http)
        print(archive)
    except ImageBuildError as error:
        to_stderr(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
