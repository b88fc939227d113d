"""What can go wrong with CDI specifications."""

from __future__ import annotations

from gpuslice.codes import Code


class CdiError(Exception):
    """Containers cannot get devices by CDI; the message says what an operator can do."""

    code = Code.CDI_SPEC_NOT_WRITTEN
