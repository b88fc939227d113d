"""python -m tests.soak [--seconds N] [--seed N]: `make soak`."""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
from pathlib import Path

from tests.surroundings import SCRATCH, remove_directory

from .run import soak
from .violation import Violation


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seconds", type=float, default=600.0, help="duration of the trouble")
    parser.add_argument("--seed", type=int, default=None, help="repeats the choices of a run")
    args = parser.parse_args()
    seed = secrets.randbelow(1 << 32) if args.seed is None else args.seed
    directory = Path(tempfile.mkdtemp(prefix="gs-", dir=SCRATCH))
    print(f"soak: {args.seconds:g} s, seed {seed}, logs in {directory}", flush=True)
    try:
        report = soak(directory, args.seconds, seed)
    except Violation as violation:
        print(f"soak: FAILED: {violation}\nRun again with --seed {seed}.", file=sys.stderr)
        return 1
    print(report)
    remove_directory(directory)
    return 0


if __name__ == "__main__":
    sys.exit(main())
