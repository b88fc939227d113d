"""Checks for names and paths that several settings share."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuslice.config.errors import ConfigError

# sun_path holds 108 bytes with its terminating zero.
_LONGEST_SOCKET_PATH = 107
_RESOURCE = re.compile(
    r"(?P<domain>[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)"
    r"/(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
)


def check_resource_name(field: str, resource: str) -> None:
    match = _RESOURCE.fullmatch(resource)
    if match is None or len(match["name"]) > 63:
        raise ConfigError(
            field,
            resource,
            "use domain/name, for example aliyun.com/gpu-mem; the name has 1 to 63 characters",
        )
    if match["domain"] == "kubernetes.io" or match["domain"].endswith(".kubernetes.io"):
        raise ConfigError(
            field, resource, "kubernetes.io is reserved for Kubernetes; use another domain"
        )


def check_imex_channels(field: str, channels: tuple[str, ...]) -> None:
    if channels not in ((), ("0",)):
        raise ConfigError(field, ",".join(channels), "use 0, or an empty list")


def check_absolute_path(field: str, path: str, reason: str) -> None:
    if not Path(path).is_absolute():
        raise ConfigError(field, path, f"use an absolute path: {reason}")
    if "\0" in path:
        raise ConfigError(field, path, "remove the zero byte: a path cannot contain one")


def check_file_path(field: str, path: str) -> None:
    """Of a file in containers."""
    if path != os.path.normpath(path) or not path.startswith("/") or path.startswith("//"):
        raise ConfigError(
            field, path, "use mount, none, or the absolute path of a file, for example /gpu.env"
        )
    check_absolute_path(field, path, "it is a file of containers")
    if path == "/":
        raise ConfigError(field, path, "name a file, for example /gpu.env")


def check_socket_path(field: str, value: str, socket: Path) -> None:
    size = len(os.fsencode(socket))
    if size > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            field,
            value,
            f"the path of the socket {socket} has {size} bytes, and {_LONGEST_SOCKET_PATH} is the "
            "maximum; use a directory or resource with a shorter name",
        )
