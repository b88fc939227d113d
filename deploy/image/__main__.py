"""Builds the image and prints its path: python -m deploy.image [--output FILE]"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from .build import build_image
from .cache import to_stderr
from .errors import ImageBuildError


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
    try:
        print(build_image(parser.parse_args().output))
    except ImageBuildError as error:
        to_stderr(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
