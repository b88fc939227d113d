"""Measures device plugins with the simulated kubelet: any command, one client, alternating.

    python bench/plugin.py                         gpuslice, NVIDIA's plugin and a bare gRPC server
    python bench/plugin.py -- COMMAND ARG …        any plugin

The command runs on a simulated node (LD_LIBRARY_PATH, PATH and KUBELET_SOCKET are set). As root, it
has a private /var/lib/kubelet/device-plugins. {node}, {kubelet_socket} and {directory} are replaced
in its arguments. The first resource that it registers is measured.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.candidates import BARE, DROP_IN, GPUSLICE, nvidia
from bench.measure import Candidate, Case, compare
from bench.tables import in_columns, in_rows

NODES = (("a100-80x8", 8), ("h100x16", 16))
SIZES = (32, 640, 8000, 60000)
WHOLE = [Case(profile, gpus, gpus, sizes=(1, 2, 4, 8)) for profile, gpus in NODES]
REPLICAS = [Case(profile, gpus, ids) for profile, gpus in NODES for ids in (384, 8000)]
TABLES = ("whole", "replicas", "memory")
MARK = "<!-- bench/plugin.py -->"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3, help="rounds of every plugin [3]")
    parser.add_argument(
        "--tables", default=",".join(TABLES), help=f"tables to print: {', '.join(TABLES)} [all]"
    )
    parser.add_argument(
        "--sizes", default=",".join(map(str, SIZES)), help="numbers of devices in the table memory"
    )
    parser.add_argument(
        "--without-nvidia", action="store_true", help="do not build NVIDIA's plugin"
    )
    parser.add_argument("--update", type=Path, help=f"write the tables to FILE, after {MARK}")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="-- COMMAND ARG …")
    args = parser.parse_args()
    command = args.command[1:] if args.command[:1] == ["--"] else args.command
    if command:
        any_plugin = Candidate(Path(command[0]).name, lambda *_: command, os.geteuid() == 0)
        tables = [in_columns(compare([any_plugin], Case(*NODES[0]), args.rounds))]
    else:
        peers = [] if args.without_nvidia else [nvidia()]
        sizes = [int(size) for size in args.sizes.split(",")]
        tables = make(args.tables.split(","), sizes, peers, args.rounds)
    report = "\n".join(tables)
    print(report)
    if args.update:
        head, _, _ = args.update.read_text().partition(MARK)
        args.update.write_text(f"{head}{MARK}\n\n{report}")


def make(
    chosen: Sequence[str], sizes: Sequence[int], peers: Sequence[Candidate], rounds: int
) -> list[str]:
    rows = {"whole": ("Whole GPUs", WHOLE), "replicas": ("Time-slicing replicas", REPLICAS)}
    tables: list[str] = []
    for name in chosen:
        if name == "memory":
            units = [Case(*NODES[0], size) for size in sizes]
            tables += [in_columns(compare([GPUSLICE, BARE, *peers], u, rounds)) for u in units]
        elif name in rows:
            title, cases = rows[name]
            results = [(case, compare([DROP_IN, *peers], case, rounds)) for case in cases]
            tables.append(in_rows(title, results))
        else:
            raise SystemExit(f"--tables: {name!r} is unknown: choose one of {', '.join(TABLES)}")
    return tables


if __name__ == "__main__":
    main()
