"""The API server's own protocol, HTTP and JSON: no process has to start for a question."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

Object = dict[str, Any]
_Request = tuple[str, str, str | None, dict[str, str]]

_PATIENCE_SECONDS = 90.0
_CLUSTER_WIDE = {"Namespace", "Node", "RuntimeClass", "ClusterRole", "ClusterRoleBinding"}


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Kube:
    """Not for several threads: reads share one connection."""

    def __init__(
        self, connect: Callable[[], http.client.HTTPConnection], headers: Mapping[str, str]
    ) -> None:
        self._connect = connect
        self._headers = dict(headers)
        self._connection: http.client.HTTPConnection | None = None

    @classmethod
    def with_token(cls, server: str, token: str, certificate: Path) -> Self:
        tls = ssl.create_default_context(cafile=str(certificate))
        address = urlsplit(server)

        def connect() -> http.client.HTTPConnection:
            return http.client.HTTPSConnection(
                str(address.hostname), address.port, context=tls, timeout=_PATIENCE_SECONDS
            )

        return cls(connect, {"Authorization": f"Bearer {token}"})

    @classmethod
    def through(cls, proxy: Path) -> Self:
        """By way of the socket of a `kubectl proxy`, which adds the credentials."""
        return cls(lambda: _SocketConnection(proxy), {})

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None

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
        except (ApiError, OSError, http.client.HTTPException):
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
        kind = "merge-patch+json" if method == "PATCH" else "json"
        headers = self._headers | {"Content-Type": f"application/{kind}"}
        content = None if body is None else json.dumps(body)
        request = (method, f"{path}?{urlencode(query)}", content, headers)
        if method == "GET":
            status, answer = self._read(request)
        else:
            with contextlib.closing(self._connect()) as connection:
                status, answer = _exchange(connection, request)
        if status >= http.HTTPStatus.BAD_REQUEST:
            raise ApiError(status, _message(answer.decode(errors="replace")))
        return answer

    def _read(self, request: _Request) -> tuple[int, bytes]:
        """Tests poll, and a new connection costs the API server more than an answer."""
        if self._connection is not None:
            try:
                return _exchange(self._connection, request)
            except (OSError, http.client.HTTPException):  # the server closed it, or restarted
                self.close()
        self._connection = self._connect()
        try:
            return _exchange(self._connection, request)
        except BaseException:
            self.close()
            raise


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_PATIENCE_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def _exchange(connection: http.client.HTTPConnection, request: _Request) -> tuple[int, bytes]:
    connection.request(*request)
    with connection.getresponse() as answer:
        return answer.status, answer.read()


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
