"""Publishers write labels to their destination, and only if something changed."""

from __future__ import annotations

import asyncio
import io
from collections.abc import Mapping
from pathlib import Path

import pytest

from gpuslice.labels.errors import PublishError
from gpuslice.labels.node_feature import Owner
from gpuslice.labels.publishers import (
    FilePublisher,
    NodeFeaturePublisher,
    NodePublisher,
    StreamPublisher,
)

LABELS = {"nvidia.com/gpu.count": "2", "nvidia.com/cuda.driver.rev": ""}
TEXT = "nvidia.com/cuda.driver.rev=\nnvidia.com/gpu.count=2\n"
POD = Owner("v1", "Pod", "gfd-x", "uid-pod")
DAEMON_SET = Owner("apps/v1", "DaemonSet", "gfd", "uid-set")


class Server:
    """An API server with one Node."""

    def __init__(self, labels: Mapping[str, str] | None = None) -> None:
        self.labels = dict(labels or {})
        self.patches: list[Mapping[str, str | None]] = []
        self.features: list[Mapping[str, object]] = []
        self.pod_is_known = True

    async def apply_node_feature(self, body: Mapping[str, object]) -> bool:
        if self.features and self.features[-1] == body:
            return False
        self.features.append(body)
        return True

    async def read_node_labels(self, node: str) -> Mapping[str, str]:
        if node != "worker-1":
            raise PublishError(f"nodes {node!r} not found")
        return self.labels

    async def patch_node_labels(self, node: str, changes: Mapping[str, str | None]) -> None:
        self.patches.append(changes)
        self.labels = {
            key: value for key, value in {**self.labels, **changes}.items() if value is not None
        }

    async def read_pod_owners(self, namespace: str, pod: str) -> tuple[Owner, tuple[Owner, ...]]:
        if not self.pod_is_known:
            raise PublishError(f"pods {pod!r} is forbidden")
        return POD, (DAEMON_SET,)


def test_the_file_has_sorted_lines_and_every_user_can_read_it(tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    assert asyncio.run(FilePublisher(path).publish(LABELS))
    assert path.read_text() == TEXT
    assert path.stat().st_mode & 0o777 == 0o644
    assert list(tmp_path.iterdir()) == [path]


def test_the_file_is_replaced_only_if_it_differs(tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    publisher = FilePublisher(path)
    asyncio.run(publisher.publish(LABELS))
    first = path.stat().st_ino
    assert not asyncio.run(publisher.publish(LABELS))
    assert path.stat().st_ino == first
    path.write_text("another program's\n")
    assert asyncio.run(publisher.publish(LABELS))
    assert path.read_text() == TEXT


def test_a_reader_that_has_the_file_open_keeps_what_it_reads(tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    publisher = FilePublisher(path)
    asyncio.run(publisher.publish(LABELS))
    with path.open() as reader:
        asyncio.run(publisher.publish({"a/b": "c"}))
        assert reader.read() == TEXT
    assert path.read_text() == "a/b=c\n"


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "gfd").mkdir()
    with pytest.raises(PublishError, match="--output-file"):
        asyncio.run(FilePublisher(tmp_path / "gfd").publish(LABELS))
    with pytest.raises(PublishError, match="mount the directory"):
        asyncio.run(FilePublisher(tmp_path / "missing" / "gfd").publish(LABELS))
    assert [path.name for path in tmp_path.iterdir()] == ["gfd"]


def test_the_draft_of_a_killed_process_is_removed_by_the_next(tmp_path: Path) -> None:
    """At most one draft is left, however often a process is killed."""
    path = tmp_path / "gfd"
    (tmp_path / ".gfd.tmp").write_text("nvidia.com/gpu.cou")
    assert asyncio.run(FilePublisher(path).publish(LABELS))
    assert list(tmp_path.iterdir()) == [path]
    assert path.read_text() == TEXT


def test_the_file_is_removed_and_may_be_missing(tmp_path: Path) -> None:
    publisher = FilePublisher(tmp_path / "gfd")
    asyncio.run(publisher.publish(LABELS))
    asyncio.run(publisher.withdraw())
    asyncio.run(publisher.withdraw())
    assert not list(tmp_path.iterdir())


def test_a_stream_gets_the_labels_when_they_change() -> None:
    stream = io.StringIO()
    publisher = StreamPublisher(stream)
    assert asyncio.run(publisher.publish(LABELS))
    assert not asyncio.run(publisher.publish(LABELS))
    assert stream.getvalue() == TEXT


def test_a_node_is_patched_with_the_difference_only() -> None:
    server = Server({"nvidia.com/gpu.count": "1", "nvidia.com/gpu.mode": "compute", "a/b": "c"})
    publisher = NodePublisher(server, "worker-1")
    assert asyncio.run(publisher.publish(LABELS))
    assert not asyncio.run(publisher.publish(LABELS))
    assert server.patches == [
        {
            "nvidia.com/cuda.driver.rev": "",
            "nvidia.com/gpu.count": "2",
            "nvidia.com/gpu.mode": None,
        }
    ]
    assert server.labels == {**LABELS, "a/b": "c"}


def test_a_label_that_another_client_removed_is_set_again() -> None:
    server = Server()
    publisher = NodePublisher(server, "worker-1")
    asyncio.run(publisher.publish(LABELS))
    server.labels.clear()
    assert asyncio.run(publisher.publish(LABELS))
    assert server.labels == LABELS


def test_a_node_feature_belongs_to_the_daemon_set() -> None:
    server = Server()
    publisher = NodeFeaturePublisher(server, "worker-1", "gpu", pod="gfd-x")
    assert asyncio.run(publisher.publish(LABELS))
    assert not asyncio.run(publisher.publish(LABELS))
    [body] = server.features
    metadata = body["metadata"]
    assert isinstance(metadata, dict)
    assert [owner["kind"] for owner in metadata["ownerReferences"]] == ["DaemonSet", "Pod"]


def test_labels_are_published_before_their_owners_are_known() -> None:
    server = Server()
    server.pod_is_known = False
    publisher = NodeFeaturePublisher(server, "worker-1", "gpu", pod="gfd-x")
    asyncio.run(publisher.publish(LABELS))
    server.pod_is_known = True
    asyncio.run(publisher.publish(LABELS))
    owned = ["ownerReferences" in str(body) for body in server.features]
    assert owned == [False, True]
