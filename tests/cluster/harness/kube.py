"""The API server's own protocol, HTTP and JSON: no process has to start for a question."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode

Object = dict[str, Any]

_PATIENCE_SECONDS = 90.0
_CLUSTER_WIDE = {"Namespace", "Node", "RuntimeClass", "ClusterRole", "ClusterRoleBinding"}


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Kube:
    def __init__(
        self, server: str, transport: urllib.request.BaseHandler, headers: Mapping[str, str]
    ) -> None:
        self._server = server
        self._headers = dict(headers)
        # The server is on this machine, whatever proxy the environment names.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), transport)

    @classmethod
    def with_token(cls, server: str, token: str, certificate: Path) -> Self:
        tls = ssl.create_default_context(cafile=str(certificate))
        transport = urllib.request.HTTPSHandler(context=tls)
        return cls(server, transport, {"Authorization": f"Bearer {token}"})

    @classmethod
    def through(cls, proxy: Path) -> Self:
        """By way of the socket of a `kubectl proxy`, which adds the credentials."""
        return cls("http://localhost", _SocketHandler(proxy), {})

    def get(self, path: str, **query: str) -> Object:
        """`path` as in /api/v1/nodes/node-a."""
        return self._json("GET", path, query)

    def find(self, path: str) -> Object | None:
        """As `get`; None if there is no such object."""
        try:
            return self.get(path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def items(self, path: str, **query: str) -> list[Object]:
        found: list[Object] = self.get(path, **query)["items"]
        return found

    def text(self, path: str, **query: str) -> str:
        return self._request("GET", path, query).decode(errors="replace")

    def create(
        self, thing: Mapping[str, Any], *, namespace: str = "default", **query: str
    ) -> Object:
        """`namespace` is for things that have one and do not name it."""
        return self._json("POST", _collection(thing, namespace), query, thing)

    def delete(self, path: str, *, grace_seconds: int | None = None) -> None:
        query = {} if grace_seconds is None else {"gracePeriodSeconds": str(grace_seconds)}
        self._request("DELETE", path, query)

    def patch(self, path: str, change: Mapping[str, Any]) -> Object:
        """A JSON merge patch."""
        return self._json("PATCH", path, {}, change)

    def ready(self) -> bool:
        try:
            return self.text("/readyz") == "ok"
        except (ApiError, OSError):
            return False

    def _json(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> Object:
        answer: Object = json.loads(self._request(method, path, query, body))
        return answer

    def _request(
        self,
        method: str,
        path: str,
        query: Mapping[str, str],
        body: Mapping[str, Any] | None = None,
    ) -> bytes:
        request = urllib.request.Request(
            f"{self._server}{path}?{urlencode(query)}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._headers,
        )
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request.add_header("Content-Type", f"application/{kind}")
        try:
            with self._opener.open(request, timeout=_PATIENCE_SECONDS) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise ApiError(error.code, _message(text)) from None


class _SocketHandler(urllib.request.HTTPHandler):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self._path = path

    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req)

    def _connection(self, host: str, **options: Any) -> http.client.HTTPConnection:
        return _SocketConnection(self._path, host, **options)


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path, host: str, **options: Any) -> None:
        super().__init__(host, **options)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _collection(thing: Mapping[str, Any], namespace: str) -> str:
    version, kind = thing["apiVersion"], thing["kind"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    if kind in _CLUSTER_WIDE:
        return f"{base}/{plural}"
    return f"{base}/namespaces/{thing['metadata'].get('namespace', namespace)}/{plural}"


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()
