"""Checks that several settings share."""

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


def check_resource(field: str, resource: str) -> None:
    match = _RESOURCE.fullmatch(resource)
    if match is None or len(match["name"]) > 63:
        raise ConfigError(
            field, resource, "use domain/name as in aliyun.com/gpu-mem (name: 1 to 63 characters)"
        )
    if match["domain"] == "kubernetes.io" or match["domain"].endswith(".kubernetes.io"):
        raise ConfigError(
            field, resource, "the kubelet keeps kubernetes.io for itself; use another domain"
        )


def check_absolute(field: str, path: str, because: str) -> None:
    if not Path(path).is_absolute():
        raise ConfigError(field, path, f"use an absolute path: {because}")
    if "\0" in path:
        raise ConfigError(field, path, "a path has no zero byte")


def check_socket(field: str, value: str, socket: Path) -> None:
    size = len(os.fsencode(socket))
    if size > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            field,
            value,
            f"the socket {socket} has a path of {size} bytes and may have "
            f"{_LONGEST_SOCKET_PATH}; choose a directory or resource with a shorter name",
        )
