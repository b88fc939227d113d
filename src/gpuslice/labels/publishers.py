"""Publishes labels: in a file or a stream for node-feature-discovery, its API, or the Node."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TextIO

from gpuslice.codes import Code
from gpuslice.config.startup_options import LabelsMode
from gpuslice.files.atomic import replace_file
from gpuslice.files.off_loop import run_to_end
from gpuslice.labels.errors import PublishError
from gpuslice.labels.node_feature import Owner, label_changes, node_feature, node_feature_owners
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

Labels = Mapping[str, str]


class NodeLabels(Protocol):
    """What publishers need from the API server. Every method raises PublishError if it fails."""

    async def apply_node_feature(self, body: Mapping[str, object]) -> bool:
        """Creates the NodeFeature object, or updates it. Returns whether anything changed."""

    async def read_node_labels(self, node: str) -> Mapping[str, str]: ...

    async def patch_node_labels(self, node: str, changes: Mapping[str, str | None]) -> None:
        """A merge patch of the Node's labels; None removes one."""

    async def read_pod_owners(self, namespace: str, pod: str) -> tuple[Owner, tuple[Owner, ...]]:
        """The pod as an owner, and the owners of the pod."""


class Publisher(Protocol):
    async def publish(self, labels: Labels) -> bool:
        """Returns whether anything changed. Raises PublishError."""

    async def withdraw(self) -> None:
        """Removes labels that would become outdated. Raises PublishError."""


class StreamPublisher:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last: str | None = None

    async def publish(self, labels: Labels) -> bool:
        text = render(labels)
        if text == self._last:
            return False
        self._last = text
        try:
            self._stream.write(text)
            self._stream.flush()
        except OSError as error:
            raise PublishError(f"labels cannot be printed ({error})") from error
        return True

    async def withdraw(self) -> None:
        """Nothing to do: what is printed stays."""


class FilePublisher:
    """Replaces the file atomically, because it may be read at any time."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def publish(self, labels: Labels) -> bool:
        try:
            # node-feature-discovery ignores files that begin with a dot, such as drafts.
            content = render(labels).encode()
            return await run_to_end(lambda: replace_file(self._path, content))
        except OSError as error:
            raise PublishError(
                f"labels cannot be written to {self._path} ({error}): mount the directory, "
                "writable, or set --output-file to another path"
            ) from error

    async def withdraw(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise PublishError(f"{self._path} cannot be removed ({error})") from error


class NodeFeaturePublisher:
    """A NodeFeature object, which node-feature-discovery turns into labels of the Node.

    It stays when the process ends. The cluster removes it with its owners.
    """

    def __init__(self, api: NodeLabels, node: str, namespace: str, pod: str = "") -> None:
        self._api = api
        self._node = node
        self._namespace = namespace
        self._pod = pod
        self._owners: tuple[Owner, ...] | None = None if pod else ()

    async def publish(self, labels: Labels) -> bool:
        """Compares with the existing object, which others may have changed."""
        body = node_feature(self._node, self._namespace, labels, await self._known_owners())
        return await self._api.apply_node_feature(body)

    async def withdraw(self) -> None:
        """Nothing to do: the cluster removes the object with its owners."""

    async def _known_owners(self) -> tuple[Owner, ...]:
        """Without owners for now if they cannot be read: the next publication tries again."""
        if self._owners is None:
            try:
                pod, owners = await self._api.read_pod_owners(self._namespace, self._pod)
            except PublishError as error:
                log.warning(
                    Code.LABELS_WITHOUT_OWNER,
                    "cannot read the owner of the labels, retrying",
                    pod=self._pod,
                    reason=error,
                )
                return ()
            self._owners = node_feature_owners(pod, owners)
        return self._owners


class NodePublisher:
    """The labels of the Node, for clusters without node-feature-discovery.

    They stay when the process ends: a restart must not unschedule pods that select them.
    """

    def __init__(self, api: NodeLabels, node: str) -> None:
        self._api = api
        self._node = node

    async def publish(self, labels: Labels) -> bool:
        changes = label_changes(await self._api.read_node_labels(self._node), labels)
        if changes:
            await self._api.patch_node_labels(self._node, changes)
        return bool(changes)

    async def withdraw(self) -> None:
        """Nothing to do: the next process removes outdated labels."""


@dataclass(frozen=True, slots=True)
class Destination:
    """Where labels are published."""

    mode: LabelsMode
    # Of the file; empty: standard output.
    output_file: str = ""
    node_name: str = ""
    namespace: str = "default"
    # The pod that owns a NodeFeature object; empty: none does.
    pod_name: str = ""


def publisher_for(destination: Destination, api: Callable[[], NodeLabels]) -> Publisher:
    """`api` connects to the API server, and is called if labels are published there."""
    match destination.mode:
        case LabelsMode.NODE_FEATURE:
            return NodeFeaturePublisher(
                api(), destination.node_name, destination.namespace, destination.pod_name
            )
        case LabelsMode.NODE:
            return NodePublisher(api(), destination.node_name)
        case _:
            file = destination.output_file
            return FilePublisher(Path(file)) if file else StreamPublisher(sys.stdout)


def render(labels: Labels) -> str:
    return "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))
