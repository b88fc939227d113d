"""Events of the agent's Node and of its pods, shown by `kubectl describe`."""

from __future__ import annotations

import datetime
import hashlib
import socket
from dataclasses import dataclass
from enum import Enum
from http import HTTPStatus
from typing import TYPE_CHECKING, Protocol

from gpuslice.cluster.client import ApiServer
from gpuslice.cluster.errors import ClusterError
from gpuslice.codes import Code
from gpuslice.telemetry.logs import Logger

if TYPE_CHECKING:
    from lightkube.resources.core_v1 import Event

log = Logger(__name__)

# The namespace of events about objects without a namespace.
_NAMESPACE = "default"
# Bytes. The API server rejects longer messages.
_LONGEST_MESSAGE = 1024
# Of the name, which has 253 characters at most with the digest.
_LONGEST_STEM = 236
_COMPONENT = "gpuslice-agent"


class EventType(Enum):
    NORMAL = "Normal"
    WARNING = "Warning"


@dataclass(frozen=True, slots=True)
class Subject:
    """What an event is about."""

    kind: str
    name: str
    uid: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True)
class PodReference:
    namespace: str
    name: str
    uid: str


class Events(Protocol):
    async def record(self, reason: str, message: str, kind: EventType) -> None:
        """`reason` is one word in CamelCase; a message must be the same when it recurs."""


class NoEvents:
    """For programs without an API server."""

    async def record(self, reason: str, message: str, kind: EventType) -> None:
        pass


class NodeEvents:
    def __init__(self, api: ApiServer, node: str) -> None:
        self._api = api
        self._node = node

    async def record(self, reason: str, message: str, kind: EventType) -> None:
        # `kubectl describe node` searches by this uid: the kubelet writes the name there, too.
        subject = Subject("Node", self._node, self._node)
        await _record(self._api, self._node, subject, reason, message, kind)


class PodEvents:
    """Events of pods on the agent's node."""

    def __init__(self, api: ApiServer, node: str) -> None:
        self._api = api
        self._node = node

    async def record(self, pod: PodReference, reason: str, message: str, kind: EventType) -> None:
        subject = Subject("Pod", pod.name, pod.uid, pod.namespace)
        await _record(self._api, self._node, subject, reason, message, kind)


async def _record(
    api: ApiServer, node: str, subject: Subject, reason: str, message: str, kind: EventType
) -> None:
    """An event that recurs increments the count of the first, even after a restart of the agent.

    A failure is logged: nothing depends on events.
    """
    message = _shortened(message)
    name = event_name(subject.name, reason, f"{subject.uid}\0{message}", kind)
    namespace = subject.namespace or _NAMESPACE
    try:
        if not await _increment_count(api, name, namespace):
            with api.errors(f"creating event {name!r}"):
                await api.client.create(_event(node, subject, name, reason, message, kind))
    except ClusterError as error:
        log.warning(
            Code.EVENT_NOT_RECORDED,
            "cannot record an event",
            about=f"{subject.kind} {subject.name}",
            event_reason=reason,
            reason=error,
        )


def event_name(subject: str, reason: str, message: str, kind: EventType) -> str:
    """Equal events have equal names."""
    content = "\0".join((subject, reason, message, kind.value)).encode()
    return f"{subject[:_LONGEST_STEM].rstrip('-.')}.{hashlib.sha256(content).hexdigest()[:16]}"


async def _increment_count(api: ApiServer, name: str, namespace: str) -> bool:
    """Returns whether the event exists: the API server deletes events after an hour."""
    from lightkube.resources.core_v1 import Event
    from lightkube.types import PatchType

    try:
        with api.errors(f"counting event {name!r}"):
            known = await api.client.get(Event, name, namespace=namespace)
            patch = {"count": (known.count or 1) + 1, "lastTimestamp": _formatted(_now())}
            await api.client.patch(
                Event, name, patch, namespace=namespace, patch_type=PatchType.MERGE
            )
    except ClusterError as error:
        if error.status == HTTPStatus.NOT_FOUND:
            return False
        raise
    return True


def _event(
    node: str, subject: Subject, name: str, reason: str, message: str, kind: EventType
) -> Event:
    from lightkube.models.core_v1 import EventSource, ObjectReference
    from lightkube.models.meta_v1 import ObjectMeta
    from lightkube.resources.core_v1 import Event

    now = _now()
    return Event(
        metadata=ObjectMeta(name=name, namespace=subject.namespace or _NAMESPACE),
        involvedObject=ObjectReference(
            apiVersion="v1",
            kind=subject.kind,
            name=subject.name,
            uid=subject.uid,
            namespace=subject.namespace,
        ),
        reason=reason,
        message=message,
        type=kind.value,
        count=1,
        firstTimestamp=now,
        lastTimestamp=now,
        source=EventSource(component=_COMPONENT, host=node),
        reportingComponent=_COMPONENT,
        reportingInstance=socket.gethostname(),
    )


def _shortened(message: str) -> str:
    if len(message.encode()) <= _LONGEST_MESSAGE:
        return message
    cut = message.encode()[: _LONGEST_MESSAGE - len("…".encode())]
    return cut.decode(errors="ignore") + "…"


def _now() -> datetime.datetime:
    # The API accepts whole seconds only.
    return datetime.datetime.now(datetime.UTC).replace(microsecond=0)


def _formatted(moment: datetime.datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")
