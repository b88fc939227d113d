"""The device nodes that grant access to MIG instances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

_MINORS = Path("driver/nvidia-caps/mig-minors")


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The driver's list of minor numbers: `gpu0/gi1/ci0/access` -> 13.

    It lists every instance that can be created, so it stays valid when MIG devices change.
    """

    minors: dict[str, int]
    source: Path

    def nodes(self, gpu_minor: int, gpu_instance: int, compute_instance: int) -> tuple[str, str]:
        """Raises NoCapability if the driver lists no node for one of the two instances."""
        instance = f"gpu{gpu_minor}/gi{gpu_instance}"
        return (
            self._node(f"{instance}/access"),
            self._node(f"{instance}/ci{compute_instance}/access"),
        )

    def _node(self, entry: str) -> str:
        if entry not in self.minors:
            raise NoCapability(f"{self.source} has no entry {entry}")
        return f"/dev/nvidia-caps/nvidia-cap{self.minors[entry]}"


class NoCapability(Exception):
    """A MIG instance has no device node; the message names the missing entry."""


def read_capabilities(proc: Path) -> Capabilities:
    """A driver without MIG has no such file."""
    source = proc / _MINORS
    try:
        text = source.read_text()
    except OSError:
        text = ""
    return Capabilities(_parse(text), source)


def _parse(text: str) -> dict[str, int]:
    pairs = (line.split() for line in text.splitlines())
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdigit()}
