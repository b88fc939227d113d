"""The API server's own protocol, HTTPS and JSON: no process has to start for a question."""

from __future__ import annotations

import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

Object = dict[str, Any]

_PATIENCE_SECONDS = 30.0
_CLUSTER_WIDE = {"Namespace", "Node", "RuntimeClass", "ClusterRole", "ClusterRoleBinding"}


class ApiError(Exception):
    """The API server refused; `status` is the HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}")
        self.status = status


class Kube:
    def __init__(self, server: str, token: str, certificate: Path) -> None:
        self._server = server
        self._token = token
        self._tls = ssl.create_default_context(cafile=str(certificate))

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

    def create(self, thing: Mapping[str, Any], **query: str) -> Object:
        return self._json("POST", _collection(thing), query, thing)

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
        )
        request.add_header("Authorization", f"Bearer {self._token}")
        kind = "merge-patch+json" if method == "PATCH" else "json"
        request.add_header("Content-Type", f"application/{kind}")
        try:
            with urllib.request.urlopen(
                request, timeout=_PATIENCE_SECONDS, context=self._tls
            ) as answer:
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            with error:
                text = error.read().decode(errors="replace")
            raise ApiError(error.code, _message(text)) from None


def _collection(thing: Mapping[str, Any]) -> str:
    version, kind = thing["apiVersion"], thing["kind"]
    base = f"/api/{version}" if "/" not in version else f"/apis/{version}"
    plural = kind.lower() + ("es" if kind.endswith("s") else "s")
    if kind in _CLUSTER_WIDE:
        return f"{base}/{plural}"
    return f"{base}/namespaces/{thing['metadata'].get('namespace', 'default')}/{plural}"


def _message(text: str) -> str:
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return text.strip()
