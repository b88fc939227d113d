"""What the simulated nodes are made of, as NVIDIA's tools print it on real hardware.

Written down here a second time on purpose: the simulation's own tables must not judge themselves.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """A GPU model, in the words of gpu-feature-discovery."""

    product: str
    memory_mib: int
    family: str
    capability: str
    mig_capable: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG profile of the A100 with 40 GB."""

    name: str
    memory_mib: int
    multiprocessors: int
    slices: int
    copy_engines: int
    decoders: int


T4 = Card("Tesla-T4", 15360, "turing", "7.5")
V100 = Card("Tesla-V100-SXM2-32GB", 32768, "volta", "7.0")
A10 = Card("NVIDIA-A10", 23028, "ampere", "8.6")
A100_40 = Card("NVIDIA-A100-SXM4-40GB", 40960, "ampere", "8.0", mig_capable=True)
A100_80 = Card("NVIDIA-A100-SXM4-80GB", 81920, "ampere", "8.0", mig_capable=True)
H100 = Card("NVIDIA-H100-80GB-HBM3", 81559, "hopper", "9.0", mig_capable=True)
L40S = Card("NVIDIA-L40S", 46068, "ada-lovelace", "8.9")
B200 = Card("NVIDIA-B200", 183359, "blackwell", "10.0", mig_capable=True)

CARDS = {
    "t4x2": [T4] * 2,
    "v100x4": [V100] * 4,
    "a10x4": [A10] * 4,
    "a100-40x8": [A100_40] * 8,
    "a100-80x8": [A100_80] * 8,
    "h100x8": [H100] * 8,
    "h100x16": [H100] * 16,
    "l40sx4": [L40S] * 4,
    "b200x8": [B200] * 8,
    "mixed": [T4, A100_40, T4, L40S],
    "a100x2-mig-single": [A100_40] * 2,
    "a100x2-mig-mixed": [A100_40] * 2,
}

SMALL = Instance("1g.5gb", 4864, 14, 1, 1, 0)
MEDIUM = Instance("2g.10gb", 9984, 28, 2, 2, 1)
LARGE = Instance("3g.20gb", 20096, 42, 3, 3, 2)

# MIG instances of each GPU; a GPU without any has MIG switched off.
INSTANCES = {
    "a100x2-mig-single": [[SMALL] * 7, [SMALL] * 7],
    "a100x2-mig-mixed": [[LARGE, MEDIUM, SMALL, SMALL], []],
}
