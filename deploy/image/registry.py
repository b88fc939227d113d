"""Pushes an image archive to a registry by the distribution API of OCI, without an engine."""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import re
import ssl
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPMessage
from pathlib import Path
from urllib.parse import urlencode, urljoin, urlsplit

from .cache import Say
from .errors import ImageBuildError

_TIMEOUT_SECONDS = 60.0
_LOCAL = re.compile(r"localhost|127(\.[0-9]+){3}|\[::1\]")
_CHALLENGE = re.compile(r'(?P<key>[a-z_]+)="(?P<value>[^"]*)"')
_USER, _PASSWORD = "REGISTRY_USER", "REGISTRY_PASSWORD"


@dataclass(frozen=True, slots=True)
class Reference:
    """host[:port]/path:tag"""

    host: str
    path: str
    tag: str


def parse_reference(name: str) -> Reference:
    found = re.fullmatch(
        r"(?P<host>[a-z0-9.-]+(?::\d+)?|\[[0-9a-f:]+\](?::\d+)?)/(?P<path>[a-z0-9._/-]+)"
        r":(?P<tag>\w[\w.-]{0,127})",
        name,
        re.ASCII,
    )
    if found is None:
        raise ImageBuildError(f"IMAGE={name} is not valid: use registry/name:tag in lower case")
    return Reference(found["host"], found["path"], found["tag"])


@dataclass(frozen=True, slots=True)
class Credentials:
    user: str
    password: str

    @property
    def header(self) -> str:
        return "Basic " + base64.b64encode(f"{self.user}:{self.password}".encode()).decode()


def find_credentials(host: str, environment: Mapping[str, str]) -> Credentials | None:
    """From variables, else those that `docker login` has stored. None: push without."""
    if environment.get(_USER):
        return Credentials(environment[_USER], environment.get(_PASSWORD, ""))
    directory = environment.get("DOCKER_CONFIG") or str(Path.home() / ".docker")
    try:
        stored = json.loads((Path(directory) / "config.json").read_text())["auths"][host]["auth"]
        user, _, password = base64.b64decode(stored).decode().partition(":")
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return Credentials(user, password)


def push_image(
    archive: Path,
    name: str,
    *,
    say: Say,
    plain_http: bool = False,
    environment: Mapping[str, str] = os.environ,
) -> str:
    """Pushes the archive of `write_image` under this name, and returns the digest."""
    target = parse_reference(name)
    registry = _Registry(target, find_credentials(target.host, environment), plain_http=plain_http)
    with contextlib.closing(registry), tarfile.open(archive) as tar:
        blobs = _Blobs(tar)
        for digest in blobs.digests():
            if registry.has_blob(digest):
                say(f"{digest[:19]}… is in {target.host} already")
            else:
                content = blobs.read(digest)
                say(f"pushing {digest[:19]}… ({len(content) / 1e6:.1f} MB)")
                registry.push_blob(digest, content)
        registry.push_manifest(blobs.read(blobs.manifest_digest), blobs.manifest_type)
    say(f"pushed {name} ({blobs.manifest_digest})")
    return blobs.manifest_digest


class _Blobs:
    """The content of an OCI layout in a tar archive."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        [record] = json.loads(self._file("index.json"))["manifests"]
        self.manifest_digest: str = record["digest"]
        self.manifest_type: str = record["mediaType"]

    def digests(self) -> Iterator[str]:
        manifest = json.loads(self.read(self.manifest_digest))
        for layer in (*manifest["layers"], manifest["config"]):
            yield layer["digest"]

    def read(self, digest: str) -> bytes:
        return self._file(f"blobs/{digest.replace(':', '/')}")

    def _file(self, path: str) -> bytes:
        file = self._tar.extractfile(path)
        assert file is not None
        return file.read()


class _Registry:
    def __init__(
        self, target: Reference, credentials: Credentials | None, *, plain_http: bool
    ) -> None:
        self._target = target
        self._credentials = credentials
        host = target.host.rpartition(":")[0] or target.host
        self._scheme = "http" if plain_http or _LOCAL.fullmatch(host) else "https"
        self._authorization: str | None = None
        self._connections: dict[tuple[str, str], http.client.HTTPConnection] = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    def has_blob(self, digest: str) -> bool:
        status, _, _ = self._call("HEAD", f"blobs/{digest}", expected=(200, 404))
        return status == http.HTTPStatus.OK

    def push_blob(self, digest: str, content: bytes) -> None:
        _, headers, _ = self._call("POST", "blobs/uploads/", expected=(202,))
        place = headers.get("Location") or ""
        place += ("&" if urlsplit(place).query else "?") + urlencode({"digest": digest})
        self._call("PUT", place, content, "application/octet-stream", expected=(201,))

    def push_manifest(self, content: bytes, kind: str) -> None:
        self._call("PUT", f"manifests/{self._target.tag}", content, kind, expected=(201,))

    def _call(
        self,
        method: str,
        place: str,
        content: bytes = b"",
        kind: str = "",
        *,
        expected: tuple[int, ...],
    ) -> tuple[int, HTTPMessage, bytes]:
        base = f"{self._scheme}://{self._target.host}/v2/{self._target.path}/"
        url = urljoin(base, place)
        headers = {"Content-Type": kind} if kind else {}
        answer = self._exchange(method, url, content, headers | self._authorize())
        if answer[0] == http.HTTPStatus.UNAUTHORIZED and self._log_in(answer[1]):
            answer = self._exchange(method, url, content, headers | self._authorize())
        status, _, body = answer
        if status not in expected:
            raise ImageBuildError(self._refusal(method, url, status, body))
        return answer

    def _authorize(self) -> dict[str, str]:
        return {} if self._authorization is None else {"Authorization": self._authorization}

    def _log_in(self, headers: HTTPMessage) -> bool:
        """As the registry asks: with the credentials, or with a token that they are worth."""
        challenge = headers.get("WWW-Authenticate") or ""
        basic = {} if self._credentials is None else {"Authorization": self._credentials.header}
        if not challenge.lower().startswith("bearer "):
            self._authorization = basic.get("Authorization")
            return bool(basic)
        fields = dict(_CHALLENGE.findall(challenge))
        query = {"scope": f"repository:{self._target.path}:pull,push"}
        if "service" in fields:
            query["service"] = fields["service"]
        url = f"{fields.get('realm', '')}?{urlencode(query)}"
        status, _, body = self._exchange("GET", url, b"", basic)
        if status != http.HTTPStatus.OK:
            return False
        found = json.loads(body)
        self._authorization = f"Bearer {found.get('token') or found.get('access_token')}"
        return True

    def _exchange(
        self, method: str, url: str, content: bytes, headers: Mapping[str, str]
    ) -> tuple[int, HTTPMessage, bytes]:
        address = urlsplit(url)
        path = address.path + (f"?{address.query}" if address.query else "")
        try:
            connection = self._connection(address.scheme, address.netloc)
            connection.request(method, path, content or None, dict(headers))
            with connection.getresponse() as answer:
                return answer.status, answer.headers, answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise ImageBuildError(self._unreachable(address.netloc, error)) from error

    def _connection(self, scheme: str, host: str) -> http.client.HTTPConnection:
        key = (scheme, host)
        if key not in self._connections:
            self._connections[key] = (
                http.client.HTTPSConnection(host, timeout=_TIMEOUT_SECONDS)
                if scheme == "https"
                else http.client.HTTPConnection(host, timeout=_TIMEOUT_SECONDS)
            )
        return self._connections[key]

    def _unreachable(self, host: str, error: Exception) -> str:
        remedy = "check the name of the registry in IMAGE"
        if isinstance(error, ssl.SSLError):
            remedy = (
                "trust its certificate (SSL_CERT_FILE), or set PLAIN_HTTP=1 if it serves plain HTTP"
            )
        return f"the registry {host} cannot be reached ({error}): {remedy}"

    def _refusal(self, method: str, url: str, status: int, body: bytes) -> str:
        said = body.decode(errors="replace").strip()[:300]
        remedy = "check the name in IMAGE"
        if status in (http.HTTPStatus.UNAUTHORIZED, http.HTTPStatus.FORBIDDEN):
            remedy = f"log in: set {_USER} and {_PASSWORD}, or run docker login"
        return f"the registry refused {method} {url} with status {status}: {remedy}\n{said}".strip()
