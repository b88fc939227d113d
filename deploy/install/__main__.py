"""Applies the manifests with kubectl: python -m deploy.install --help"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys

from deploy.image import ImageBuildError
from deploy.image.registry import parse_reference

from .manifests import PROGRAMS, Nested, chosen, rendered


def main() -> int:
    options = _parse(sys.argv[1:])
    try:
        parse_reference(options.image)
    except ImageBuildError as error:
        return _fail(str(error))
    names = chosen(options.program, Nested(options.nested))
    text = rendered(names, options.image)
    if options.dry_run:
        print(text, end="")
        return 0
    kubectl = os.environ.get("KUBECTL") or shutil.which("kubectl")
    if kubectl is None:
        return _fail(
            "kubectl is not on PATH: install it, set KUBECTL to its path, or apply the output of "
            "DRY_RUN=1 yourself"
        )
    print(f"applying {', '.join(names)} with the image {options.image}", flush=True)
    return subprocess.run(
        [kubectl, "apply", "-f", "-"], input=text.encode(), check=False
    ).returncode


def _parse(args: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m deploy.install",
        description="Apply the manifests of gpuslice to the current cluster of kubectl.",
    )
    parser.add_argument("--image", required=True, metavar="REGISTRY/NAME:TAG")
    parser.add_argument(
        "--program",
        choices=sorted(PROGRAMS),
        default="agent",
        help="what to install (default: %(default)s)",
    )
    parser.add_argument(
        "--nested",
        choices=[member.value for member in Nested],
        default=Nested.OFF.value,
        help="for nested clusters: host for the outer cluster, guest for the inner one",
    )
    parser.add_argument("--dry-run", action="store_true", help="print the manifests only")
    return parser.parse_args(args)


def _fail(message: str) -> int:
    print(f"install: {message}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
