"""What the code under test logs, by reason code."""

from __future__ import annotations

import pytest

from gpuslice.codes import Code


def logged(caplog: pytest.LogCaptureFixture) -> list[Code]:
    return [record.gpuslice_code for record in caplog.records if hasattr(record, "gpuslice_code")]


def fields(caplog: pytest.LogCaptureFixture, code: Code) -> dict[str, object]:
    """The details of the one line with this code."""
    [found] = [r for r in caplog.records if getattr(r, "gpuslice_code", None) is code]
    details: dict[str, object] = found.gpuslice_fields  # type: ignore[attr-defined]
    return details
