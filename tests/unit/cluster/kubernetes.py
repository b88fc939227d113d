"""An API server with the part of the Kubernetes API that the agent uses, over real HTTP."""

from __future__ import annotations

import contextlib
import json
import queue
import re
import socket
import threading
from collections.abc import Iterator
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.surroundings import own_host

Object = dict[str, Any]

_KINDS = {"nodes": "Node", "events": "Event", "nodefeatures": "NodeFeature", "pods": "Pod"}
_PATH = re.compile(
    r"/(?:api/v1|apis/nfd\.k8s-sigs\.io/v1alpha1)(?:/namespaces/(?P<namespace>[^/]+))?"
    r"/(?P<kind>[a-z]+)(?:/(?P<name>[^/]+))?(?P<eviction>/eviction)?"
)
_CLOSE = object()


class Refusal(Exception):
    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.status = {"kind": "Status", "status": "Failure", "code": code, "message": reason}


class Kubernetes:
    def __init__(self) -> None:
        self.objects: dict[tuple[str, str], Object] = {}
        self.requests: list[str] = []
        self.watches: list[dict[str, str]] = []
        self.evictions: list[Object] = []
        self.refuse_with: int | None = None
        # Requests for such paths are forbidden.
        self.refuse_pattern = ""
        self.end_watches_at_once = False
        self.node_features_known = True
        self.conflicts = 0
        # With the kind of object that they watch.
        self._watchers: list[tuple[str, queue.Queue[object]]] = []
        # With the version that the API server had then.
        self._deleted: list[tuple[int, Object]] = []
        self._version = 100
        self._oldest = 0
        self._lock = threading.RLock()
        self._server: _Server | None = None
        # Its own, so that it finds its port free when it comes back.
        self.host = own_host()
        self.port = 0

    # What a test does to the cluster.

    def start(self) -> None:
        kubernetes = self

        class Handler(_Handler):
            cluster = kubernetes

        self._server = _Server((self.host, self.port), Handler)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()

    def stop(self) -> None:
        assert self._server is not None
        self._server.shutdown()
        self._server.cut_connections()
        self.drop_watches()
        self._server.server_close()

    def put(self, kind: str, name: str, /, **content: Any) -> Object:
        with self._lock:
            self._version += 1
            known = (kind, name) in self.objects
            metadata = {"name": name, "resourceVersion": str(self._version)}
            metadata |= content.pop("metadata", {})
            api = "nfd.k8s-sigs.io/v1alpha1" if kind == "nodefeatures" else "v1"
            stored = {"apiVersion": api, "kind": _KINDS[kind], **content, "metadata": metadata}
            self.objects[kind, name] = stored
            self._tell("MODIFIED" if known else "ADDED", stored)
            return stored

    def label(self, node: str, **labels: str) -> None:
        self.put(
            "nodes", node, metadata={"labels": {"nvidia.com/" + k: v for k, v in labels.items()}}
        )

    def delete(self, kind: str, name: str) -> None:
        with self._lock:
            self._version += 1
            gone = self.objects.pop((kind, name))
            self._deleted.append((self._version, gone))
            self._tell("DELETED", gone)

    def forget_history(self) -> None:
        """As after a compaction: whoever comes with an older version has to list anew."""
        with self._lock:
            self._version += 1
            self._oldest = self._version

    def drop_watches(self) -> None:
        with self._lock:
            for _, watcher in self._watchers:
                watcher.put(_CLOSE)

    def send(self, event: Object) -> None:
        with self._lock:
            for _, watcher in self._watchers:
                watcher.put(event)

    @property
    def watching(self) -> int:
        return len(self._watchers)

    def count(self, pattern: str) -> int:
        return sum(1 for request in self.requests if re.match(pattern, request))

    def kubeconfig(self, path: Path) -> Path:
        cluster = {"name": "c", "cluster": {"server": f"http://{self.host}:{self.port}"}}
        context = {"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "gpus"}}
        user = {"name": "u", "user": {"token": "secret"}}
        path.write_text(
            json.dumps(
                {
                    "current-context": "x",
                    "clusters": [cluster],
                    "contexts": [context],
                    "users": [user],
                }
            )
        )
        return path

    # What the API server does.

    def _tell(self, event: str, stored: Object) -> None:
        """Of Nodes and Pods, those who watch them."""
        for kind, watcher in self._watchers:
            if stored["kind"] == _KINDS[kind]:
                watcher.put({"type": event, "object": stored})

    def answer(self, method: str, path: str, body: Object) -> Object:
        match = _PATH.fullmatch(path)
        with self._lock:
            if match is None or (match["kind"] == "nodefeatures" and not self.node_features_known):
                raise Refusal(404, "404 page not found")
            kind, name = match["kind"], match["name"]
            if method == "GET":
                return self._get(kind, name)
            if match["eviction"]:
                return self._evict(name, body)
            if method == "POST":
                return self._create(kind, body)
            if method == "PATCH":
                merged = _merged(self._get(kind, name), body)
                return self.put(kind, name, **{**merged, "metadata": _own(merged["metadata"])})
            return self._replace(kind, name, body)

    def _get(self, kind: str, name: str) -> Object:
        if (kind, name) not in self.objects:
            raise Refusal(404, f'{kind} "{name}" not found')
        return self.objects[kind, name]

    def _create(self, kind: str, body: Object) -> Object:
        name = body["metadata"]["name"]
        if (kind, name) in self.objects:
            raise Refusal(409, f'{kind} "{name}" already exists')
        return self.put(kind, name, **body)

    def _evict(self, name: str, body: Object) -> Object:
        self._get("pods", name)
        self.evictions.append(body)
        return {"kind": "Status", "status": "Success"}

    def _replace(self, kind: str, name: str, body: Object) -> Object:
        present = self._get(kind, name)["metadata"]["resourceVersion"]
        if self.conflicts or body["metadata"]["resourceVersion"] != present:
            self.conflicts = max(0, self.conflicts - 1)
            raise Refusal(409, "the object has been modified")
        return self.put(kind, name, **{**body, "metadata": _own(body["metadata"])})

    def listed(self, kind: str, name: str | None = None) -> Object:
        """All objects of the kind, or the one with this name."""
        with self._lock:
            found = [
                stored
                for (its_kind, its_name), stored in self.objects.items()
                if its_kind == kind and name in (None, its_name)
            ]
            return {
                "kind": f"{_KINDS[kind]}List",
                "metadata": {"resourceVersion": str(self._version)},
                "items": found,
            }

    @contextlib.contextmanager
    def watcher(self, kind: str, since: int) -> Iterator[queue.Queue[object]]:
        events: queue.Queue[object] = queue.Queue()
        with self._lock:
            if since < self._oldest:
                status = Refusal(410, "too old resource version").status
                events.put({"type": "ERROR", "object": status})
                events.put(_CLOSE)
            history = [
                (int(stored["metadata"]["resourceVersion"]), "MODIFIED", stored)
                for (its_kind, _), stored in self.objects.items()
                if its_kind == kind
            ]
            history += [
                (version, "DELETED", gone)
                for version, gone in self._deleted
                if gone["kind"] == _KINDS[kind]
            ]
            for version, event, stored in sorted(history, key=lambda entry: entry[0]):
                if version > since >= self._oldest:
                    events.put({"type": event, "object": stored})
            self._watchers.append((kind, events))
        try:
            yield events
        finally:
            with self._lock:
                self._watchers.remove((kind, events))


class ConfigMap:
    """A volume as the kubelet makes one: names are links through `..data`, which is replaced."""

    def __init__(self, directory: Path, **content: str) -> None:
        self.directory = directory
        self._version = 0
        directory.mkdir()
        self.update(**content)

    def update(self, **content: str) -> None:
        self._version += 1
        data = self.directory / f"..2026_{self._version}"
        data.mkdir()
        for name, text in content.items():
            (data / name).write_text(text)
        fresh = self.directory / "..data_tmp"
        fresh.symlink_to(data.name)
        fresh.rename(self.directory / "..data")
        for name in content:
            if not (self.directory / name).is_symlink():
                (self.directory / name).symlink_to(f"..data/{name}")
        for entry in self.directory.iterdir():
            if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in content:
                entry.unlink()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._connections: list[socket.socket] = []

    def get_request(self) -> tuple[socket.socket, Any]:
        connection, address = super().get_request()
        self._connections.append(connection)
        return connection, address

    def cut_connections(self) -> None:
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients go away in the middle of things."""


class _Handler(BaseHTTPRequestHandler):
    cluster: Kubernetes
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        if url.path not in ("/api/v1/nodes", "/api/v1/pods"):
            return self._serve()
        if not self._allowed():
            return None
        kind = url.path.rpartition("/")[2]
        if query.get("watch") == "true":
            self.cluster.watches.append(query)
            return self._watch(kind, int(query["resourceVersion"]))
        # Every pod is on the node.
        name = query["fieldSelector"].removeprefix("metadata.name=") if kind == "nodes" else None
        return self._send(200, self.cluster.listed(kind, name))

    def do_POST(self) -> None:
        self._serve()

    def do_PATCH(self) -> None:
        self._serve()

    def do_PUT(self) -> None:
        self._serve()

    def _serve(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or "{}")
        if not self._allowed():
            return
        try:
            self._send(200, self.cluster.answer(self.command, urlsplit(self.path).path, body))
        except Refusal as refusal:
            if str(refusal) == "404 page not found":
                self._send_text(404, "404 page not found\n")
            else:
                self._send(refusal.code, refusal.status)

    def _allowed(self) -> bool:
        self.cluster.requests.append(f"{self.command} {self.path}")
        code = self.cluster.refuse_with
        if self.cluster.refuse_pattern and re.match(self.cluster.refuse_pattern, self.path):
            code = HTTPStatus.FORBIDDEN
        if code is not None:
            self._send(code, Refusal(code, f"refused with {code}").status)
        return code is None

    def _watch(self, kind: str, since: int) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        with self.cluster.watcher(kind, since) as events:
            while not self.cluster.end_watches_at_once:
                event = events.get()
                if event is _CLOSE:
                    break
                line = json.dumps(event).encode() + b"\n"
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
        self.wfile.write(b"0\r\n\r\n")

    def _send(self, code: int, body: Object) -> None:
        self._send_bytes(code, json.dumps(body).encode(), "application/json")

    def _send_text(self, code: int, text: str) -> None:
        self._send_bytes(code, text.encode(), "text/plain")

    def _send_bytes(self, code: int, content: bytes, kind: str) -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        pass


def _own(metadata: Object) -> Object:
    return {key: value for key, value in metadata.items() if key != "resourceVersion"}


def _merged(known: Object, patch: Object) -> Object:
    """A JSON merge patch."""
    result = dict(known)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            present = result.get(key)
            result[key] = _merged(present if isinstance(present, dict) else {}, value)
        else:
            result[key] = value
    return result
