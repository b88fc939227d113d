"""Which manifests belong together, and the image in them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from enum import Enum
from pathlib import Path

from deploy.image import image_name, read_project

DIRECTORY = Path(__file__).parents[1] / "manifests"


class Nested(Enum):
    OFF = "off"
    HOST = "host"
    GUEST = "guest"


# The same for every program.
_COMMON = ("runtimeclass.yaml", "network-policy.yaml")
# Manifests by program, the accounts first.
PROGRAMS = {
    "agent": ("rbac.yaml", "agent-mps.yaml", "agent.yaml"),
    "gpushare": ("rbac.yaml", "gpushare.yaml"),
    "nvidia": ("nvidia.yaml",),
    "nvidia-mps": ("nvidia.yaml", "nvidia-mps.yaml"),
}
_NESTED = {Nested.HOST: ("nested-host.yaml",), Nested.GUEST: ("nested-guest.yaml",)}


def chosen(program: str, nested: Nested) -> tuple[str, ...]:
    """File names, in the order in which they are applied."""
    return (*_COMMON, *(_NESTED.get(nested) or PROGRAMS[program]))


def rendered(names: Sequence[str], image: str) -> str:
    """The manifests as one YAML text, with this image instead of the local one."""
    local = re.escape(image_name(read_project()))
    texts = (
        re.sub(rf"(?m)^(\s*image: ){local}$", rf"\g<1>{image}", (DIRECTORY / name).read_text())
        for name in names
    )
    return "".join(f"---\n{text.rstrip()}\n" for text in texts)
