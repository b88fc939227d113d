"""The content of a configuration file, after parsing and validation.

It is separate from the parser so that an agent without a file does not load the parser, which saves
memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuslice.config.option_values import OptionValue
from gpuslice.config.settings import LABEL_DEFAULTS, LabelSettings
from gpuslice.slicing.rules import NameRule, ReplicaRule


@dataclass(frozen=True, slots=True)
class FileContent:
    # Keys that also have a flag, by the name of the option.
    values: Mapping[str, OptionValue] = field(default_factory=dict)
    # Keys that have no flag.
    gpus: tuple[NameRule, ...] = ()
    mig: tuple[NameRule, ...] = ()
    replicas: tuple[ReplicaRule, ...] = ()
    labels: LabelSettings = LABEL_DEFAULTS
    # Whether the file has sharing.memory, with or without content.
    has_memory: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def advertises_devices(self) -> bool:
        return bool(self.gpus or self.mig or self.replicas)
