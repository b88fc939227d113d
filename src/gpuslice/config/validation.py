"""Checks for names and paths that several settings share."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gpuslice.config.errors import ConfigError

# sun_path holds 108 bytes with its terminating zero.
_LONGEST_SOCKET_PATH = 107
# As NVIDIA's control programs accept it: they add the names of their sockets.
_LONGEST_PIPE_DIRECTORY = 87
# PATH_MAX without the terminating zero, and NAME_MAX.
_LONGEST_PATH = 4095
_LONGEST_FILE_NAME = 255
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
    if not path.startswith("/"):
        raise ConfigError(field, path, f"use an absolute path: {reason}")
    check_path(field, path)


def check_path(field: str, path: str) -> None:
    """Raises ConfigError if no file can have this path: the kernel rejects it in any call."""
    if "\0" in path:
        raise ConfigError(field, path, "remove the zero byte: a path cannot contain one")
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError as error:
        raise ConfigError(field, path, "a path cannot contain half of a character") from error
    longest = max(map(len, encoded.split(b"/")))
    if longest > _LONGEST_FILE_NAME or len(encoded) > _LONGEST_PATH:
        raise ConfigError(
            field,
            path,
            f"it has {len(encoded)} bytes, and {longest} between two slashes: use a path of at "
            f"most {_LONGEST_PATH} bytes, with at most {_LONGEST_FILE_NAME} between two slashes",
        )


def check_file_path(field: str, path: str) -> None:
    """Of a file in containers."""
    if path != os.path.normpath(path) or not path.startswith("/") or path.startswith("//"):
        raise ConfigError(
            field, path, "use mount, none, or the absolute path of a file, for example /gpu.env"
        )
    check_absolute_path(field, path, "it is a file of containers")
    if path == "/":
        raise ConfigError(field, path, "name a file, for example /gpu.env")


def check_pipe_directory(field: str, path: str) -> None:
    """Of MPS, which rejects a path that is too long without a message."""
    size = len(os.fsencode(path))
    if size > _LONGEST_PIPE_DIRECTORY:
        raise ConfigError(
            field,
            path,
            f"it has {size} bytes, and MPS accepts {_LONGEST_PIPE_DIRECTORY}: use a shorter path",
        )


def check_socket_path(field: str, value: str, socket: Path) -> None:
    size = len(os.fsencode(socket))
    if size > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            field,
            value,
            f"the path of the socket {socket} has {size} bytes, and {_LONGEST_SOCKET_PATH} is the "
            "maximum; use a directory or resource with a shorter name",
        )
