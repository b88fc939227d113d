"""Where labels go: a file or a stream for node-feature-discovery, its API, or the Node itself."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TextIO

from gpuslice.files.atomic import replace_file
from gpuslice.labels.errors import PublishError
from gpuslice.labels.node_feature import Owner, label_changes, lasting_owners, node_feature
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

Labels = Mapping[str, str]


class NodeLabels(Protocol):
    """The API server, as far as labels go. Every method raises PublishError if it fails."""

    async def apply_node_feature(self, body: Mapping[str, object]) -> bool:
        """Creates the NodeFeature object, or makes the existing one equal to this.

        Returns whether there was anything to do.
        """

    async def read_node_labels(self, node: str) -> Mapping[str, str]: ...

    async def patch_node_labels(self, node: str, changes: Mapping[str, str | None]) -> None:
        """A merge patch of the Node's labels; None removes one."""

    async def read_pod_owners(self, namespace: str, pod: str) -> tuple[Owner, tuple[Owner, ...]]:
        """The pod as an owner, and who owns the pod."""


class Publisher(Protocol):
    async def publish(self, labels: Labels) -> bool:
        """Returns whether anything had to be changed. Raises PublishError."""

    async def withdraw(self) -> None:
        """Takes back what would be wrong once nobody keeps it true. Raises PublishError."""


class ToStream:
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
        """What was printed stays."""


class ToFile:
    """The file appears complete or not at all: its reader may look at any moment."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def publish(self, labels: Labels) -> bool:
        try:
            # node-feature-discovery leaves out files whose name begins with a dot, as drafts do.
            return replace_file(self._path, render(labels).encode())
        except OSError as error:
            raise PublishError(
                f"labels cannot be written to {self._path} ({error}): is the directory mounted "
                "and writable? Another place is chosen with --output-file"
            ) from error

    async def withdraw(self) -> None:
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            raise PublishError(f"{self._path} cannot be removed ({error})") from error


class AsNodeFeature:
    """An object that node-feature-discovery turns into labels of the Node.

    It stays when the process ends: its owners outlive the process, and the cluster removes it
    after them.
    """

    def __init__(self, api: NodeLabels, node: str, namespace: str, pod: str = "") -> None:
        self._api = api
        self._node = node
        self._namespace = namespace
        self._pod = pod
        self._owners: tuple[Owner, ...] | None = None if pod else ()

    async def publish(self, labels: Labels) -> bool:
        """The object is compared with the one that is there, which others may have changed."""
        body = node_feature(self._node, self._namespace, labels, await self._known_owners())
        return await self._api.apply_node_feature(body)

    async def withdraw(self) -> None:
        """Removed by the cluster with its owners."""

    async def _known_owners(self) -> tuple[Owner, ...]:
        """Labels without owners are better than none; the owners are asked for again next time."""
        if self._owners is None:
            try:
                pod, above = await self._api.read_pod_owners(self._namespace, self._pod)
            except PublishError as error:
                log.warning("the labels have no owner yet", pod=self._pod, reason=error)
                return ()
            self._owners = lasting_owners(pod, above)
        return self._owners


class OnNode:
    """The Node's own labels, for clusters without node-feature-discovery.

    They stay when the process ends: pods that select them must not lose their node to a restart.
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
        """The next process removes what no longer holds."""


def render(labels: Labels) -> str:
    return "".join(f"{key}={value}\n" for key, value in sorted(labels.items()))
