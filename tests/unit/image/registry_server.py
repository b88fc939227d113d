"""A small registry: enough of the distribution API to receive an image, and as strict."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

TOKEN = "a-token"
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass
class Received:
    # user:password, if it asks for them; with `bearer`, they are worth a token that it asks for.
    login: str = ""
    bearer: bool = False
    address: str = ""
    blobs: dict[str, bytes] = field(default_factory=dict)
    manifests: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    @property
    def basic(self) -> str:
        return "Basic " + base64.b64encode(self.login.encode()).decode()

    @property
    def challenge(self) -> str:
        if not self.bearer:
            return 'Basic realm="test"'
        return f'Bearer realm="http://{self.address}/token",service="test"'


@contextlib.contextmanager
def registry(*, login: str = "", bearer: bool = False) -> Iterator[Received]:
    received = Received(login, bearer)
    with _Server(("127.0.0.1", 0), _Handler) as server:
        server.received = received
        received.address = f"127.0.0.1:{server.server_address[1]}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield received
        server.shutdown()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    received: Received


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def log_message(self, *args: object) -> None:
        """Tests read `Received`."""

    def do_HEAD(self) -> None:
        digest = urlsplit(self.path).path.rpartition("/")[2]
        if self._allowed():
            self._answer(200 if digest in self.server.received.blobs else 404)

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        assert query["scope"] == ["repository:team/gpuslice:pull,push"]
        right = self.headers["Authorization"] == self.server.received.basic
        self._answer(200 if right else 401, json.dumps({"token": TOKEN}).encode())

    def do_POST(self) -> None:
        if self._allowed():
            self._answer(202, headers={"Location": "/upload/1?state=x"})

    def do_PUT(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self._allowed():
            return
        place = urlsplit(self.path)
        right = (
            self._receive_blob(content, parse_qs(place.query))
            if place.path.startswith("/upload/")
            else self._receive_manifest(content, place.path)
        )
        self._answer(201 if right else 400)

    def _receive_blob(self, content: bytes, query: dict[str, list[str]]) -> bool:
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self.server.received.blobs[digest] = content
        return query == {"state": ["x"], "digest": [digest]}

    def _receive_manifest(self, content: bytes, path: str) -> bool:
        manifest = json.loads(content)
        needed = {one["digest"] for one in (manifest["config"], *manifest["layers"])}
        self.server.received.manifests[path] = content
        return needed <= self.server.received.blobs.keys() and (
            self.headers["Content-Type"] == _MANIFEST
        )

    def _allowed(self) -> bool:
        received = self.server.received
        received.requests.append(f"{self.command} {self.path}")
        wanted = f"Bearer {TOKEN}" if received.bearer else received.basic
        if not received.login or self.headers["Authorization"] == wanted:
            return True
        self._answer(401, headers={"WWW-Authenticate": received.challenge})
        return False

    def _answer(
        self, status: int, body: bytes = b"", headers: dict[str, str] | None = None
    ) -> None:
        self.send_response(status)
        for name, value in {**(headers or {}), "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)
