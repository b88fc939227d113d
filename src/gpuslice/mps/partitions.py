"""Static partitions of the SMs of a GPU: daemons of drivers from 590 on, started with -S.

Each client of such a daemon uses one partition, which no client of another partition uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from gpuslice.mps.control import ControlClient
from gpuslice.mps.driver_program_run import shortened

# Drivers print the bare name, or a sentence with it.
_NAME = re.compile(r"(?P<gpu>GPU-[0-9a-f-]+)/(?P<id>[^\s/]+)", re.ASCII)
_COLUMNS = 7
_NONE = "-"


class PartitionError(Exception):
    """The message says what the daemon refuses."""


@dataclass(frozen=True, slots=True)
class Partition:
    chunks: int
    # Whether clients use it.
    in_use: bool


@dataclass(frozen=True, slots=True)
class Partitioned:
    """A GPU. A chunk is the smallest number of SMs that a partition can have."""

    free_chunks: int
    used_chunks: int
    # By id, which is unique until the daemon ends.
    partitions: Mapping[str, Partition] = field(default_factory=dict)

    @property
    def chunks(self) -> int:
        return self.free_chunks + self.used_chunks


def parse_table(text: str, gpu: str) -> Partitioned | None:
    """The output of `lspart` about a GPU, given by UUID; None: it has no such GPU.

    The table shortens UUIDs. Its columns are the GPU, the partition, free and used chunks, free and
    used SMs, and whether there are clients.
    """
    rows = [line.split() for line in text.splitlines()]
    own = [row for row in rows if len(row) == _COLUMNS and _is_gpu(row[0], gpu)]
    total = [row for row in own if row[1] == _NONE]
    if len(total) != 1 or not all(cell.isdecimal() for cell in total[0][2:4]):
        return None
    found = {
        row[1]: Partition(int(row[3]), row[6] != _NONE)
        for row in own
        if row[1] != _NONE and row[3].isdecimal()
    }
    return Partitioned(int(total[0][2]), int(total[0][3]), found)


async def list_partitions(control: ControlClient, gpu: str) -> Partitioned:
    """Raises PartitionError or MpsUnavailable."""
    text = await control.command("lspart")
    found = parse_table(text, gpu)
    if found is None:
        raise PartitionError(
            f"the MPS control daemon lists no partitions of {gpu} ({shortened(text)!r}): start it "
            "with -S"
        )
    return found


async def add_partition(control: ControlClient, gpu: str, chunks: int) -> str:
    """Returns its name: UUID and id. Raises PartitionError or MpsUnavailable.

    The program exits with 0 also if the daemon refuses, so only a name proves that it did not.
    """
    text = await control.command(f"sm_partition add {gpu} {chunks}")
    for found in _NAME.finditer(text):
        if found["gpu"] == gpu:
            return found[0]
    raise PartitionError(
        f"the MPS control daemon adds no partition of {chunks} chunks on {gpu}: {shortened(text)!r}"
    )


async def remove_partitions(control: ControlClient, gpu: str, ids: Iterable[str]) -> None:
    """The daemon refuses for one that has clients. Raises MpsUnavailable."""
    for partition in ids:
        await control.command(f"sm_partition rm {gpu} {partition}")


def _is_gpu(short: str, uuid: str) -> bool:
    return short.startswith("GPU-") and uuid.startswith(short.rstrip("."))
