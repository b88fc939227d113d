"""What only a file can say: names of devices, replicas, how labels are published.

Apart from the reader of the file, so that an agent without one does without the parser's memory.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpuslice.config.settings import LABEL_DEFAULTS, LabelSettings
from gpuslice.slicing.rules import NameRule, ReplicaRule


@dataclass(frozen=True, slots=True)
class FileSections:
    gpus: tuple[NameRule, ...] = ()
    mig: tuple[NameRule, ...] = ()
    replicas: tuple[ReplicaRule, ...] = ()
    # Whether the file speaks of memory at all.
    memory: bool = False
    labels: LabelSettings = LABEL_DEFAULTS

    @property
    def offers_devices(self) -> bool:
        return bool(self.gpus or self.mig or self.replicas)
