from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gpuslice.config.load import load_settings
from gpuslice.config.settings import Settings

Read = Callable[[str], Settings]


@pytest.fixture
def read(tmp_path: Path) -> Read:
    def read(text: str) -> Settings:
        path = tmp_path / "config.yaml"
        path.write_text(text)
        return load_settings({}, None, path).settings

    return read
