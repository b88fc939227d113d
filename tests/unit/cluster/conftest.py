from __future__ import annotations

from collections.abc import Iterator

import pytest

from .kubernetes import Kubernetes


@pytest.fixture
def kubernetes() -> Iterator[Kubernetes]:
    cluster = Kubernetes()
    cluster.start()
    yield cluster
    cluster.stop()
