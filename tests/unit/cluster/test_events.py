from __future__ import annotations

import asyncio
import logging
import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuslice.cluster.client import ApiServer, connect
from gpuslice.cluster.events import EventType, NodeEvents, event_name
from gpuslice.codes import Code
from tests.unit.logged import logged

from .kubernetes import Kubernetes, Object


def record(kubernetes: Kubernetes, directory: Path, *messages: str) -> list[Object]:
    async def main() -> None:
        api: ApiServer = connect(kubernetes.kubeconfig(directory / "kubeconfig"))
        events = NodeEvents(api, "n1")
        for message in messages:
            await events.record("GpuUnhealthy", message, EventType.WARNING)
        await api.close()

    asyncio.run(main())
    return [found for (kind, _), found in kubernetes.objects.items() if kind == "events"]


def test_an_event_is_about_the_node_and_found_by_describe(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    (event,) = record(kubernetes, tmp_path, "XID 79")
    assert event["involvedObject"] == {
        "apiVersion": "v1",
        "kind": "Node",
        "name": "n1",
        "uid": "n1",
    }
    assert (event["reason"], event["message"], event["type"], event["count"]) == (
        "GpuUnhealthy",
        "XID 79",
        "Warning",
        1,
    )
    assert event["source"] == {"component": "gpuslice-agent", "host": "n1"}
    assert event["metadata"]["namespace"] == "default"
    assert event["firstTimestamp"] == event["lastTimestamp"]
    assert len(event["firstTimestamp"]) == len("2026-01-01T00:00:00Z")


def test_the_same_message_again_raises_the_count(kubernetes: Kubernetes, tmp_path: Path) -> None:
    record(kubernetes, tmp_path, "XID 79", "XID 79")
    (event,) = record(kubernetes, tmp_path, "XID 79")
    assert event["count"] == 3


def test_another_message_is_another_event(kubernetes: Kubernetes, tmp_path: Path) -> None:
    events = record(kubernetes, tmp_path, "XID 79", "XID 48", "XID 79")
    assert sorted((event["message"], event["count"]) for event in events) == [
        ("XID 48", 1),
        ("XID 79", 2),
    ]


def test_a_long_message_is_cut_to_the_limit_of_the_api_server(
    kubernetes: Kubernetes, tmp_path: Path
) -> None:
    (event,) = record(kubernetes, tmp_path, "ü" * 2000)
    assert 1000 < len(event["message"].encode()) <= 1024


@pytest.mark.parametrize("code", [403, 500])
def test_an_event_that_cannot_be_written_is_only_logged(
    kubernetes: Kubernetes, tmp_path: Path, caplog: pytest.LogCaptureFixture, code: int
) -> None:
    caplog.set_level(logging.WARNING, "gpuslice")
    kubernetes.refuse_with = code
    assert record(kubernetes, tmp_path, "XID 79") == []
    assert logged(caplog) == [Code.EVENT_NOT_RECORDED]


def test_no_api_server_is_no_failure_either(kubernetes: Kubernetes, tmp_path: Path) -> None:
    kubernetes.stop()
    assert record(kubernetes, tmp_path, "XID 79") == []
    kubernetes.start()


@given(
    node=st.text(string.ascii_lowercase + "-.", min_size=1, max_size=253).filter(
        lambda name: name[0] not in "-." and name[-1] not in "-."
    ),
    message=st.text(),
)
def test_names_of_events_are_names_the_api_server_takes(node: str, message: str) -> None:
    name = event_name(node, "Reason", message, EventType.NORMAL)
    assert len(name) <= 253
    assert set(name) <= set(string.ascii_lowercase + string.digits + "-.")
    assert name[0].isalnum()
    assert name[-1].isalnum()
