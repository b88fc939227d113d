"""The effective settings of an agent, after every source has been heard."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from gpuslice.config.errors import ConfigError
from gpuslice.slicing.limits import ThreadShare
from gpuslice.slicing.units import GIB, MemoryUnit, describe_mib

GPUSHARE_RESOURCE = "aliyun.com/gpu-mem"
KUBELET_SOCKET = "/var/lib/kubelet/device-plugins/kubelet.sock"

# sun_path holds 108 bytes with its terminating zero.
_LONGEST_SOCKET_PATH = 107
_RESOURCE = re.compile(
    r"(?P<domain>[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)"
    r"/(?P<name>[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)"
)


class MpsCheck(Enum):
    """What the agent makes of an MPS daemon that it cannot reach."""

    REQUIRE = "require"  # slices are unhealthy and containers wait until the daemon answers
    AUTO = "auto"  # as `require`, unless the pipe directory is not visible to the agent at all
    OFF = "off"


@dataclass(frozen=True, slots=True)
class Settings:
    resource: str = GPUSHARE_RESOURCE
    memory_unit: MemoryUnit = GIB
    memory_reserve_mib: int = 0
    threads: ThreadShare = ThreadShare.PROPORTIONAL
    mps_pipe: str | None = None
    mps_check: MpsCheck = MpsCheck.REQUIRE
    health_checks: bool = True
    fail_on_init_error: bool = True
    kubelet_socket: str = KUBELET_SOCKET

    def __post_init__(self) -> None:
        _check_resource(self.resource)
        _check_pipe(self.mps_pipe)
        if not Path(self.kubelet_socket).is_absolute():
            raise ConfigError(
                "kubelet-socket", self.kubelet_socket, f"use an absolute path, as {KUBELET_SOCKET}"
            )
        _check_socket(
            "kubelet-socket",
            self.kubelet_socket,
            Path(self.kubelet_socket).parent / self.plugin_socket,
        )

    @property
    def plugin_socket(self) -> str:
        """gpushare's name for gpushare's resource, so that tools find it."""
        if self.resource == GPUSHARE_RESOURCE:
            return "aliyungpushare.sock"
        return f"gpuslice-{self.resource.replace('/', '_')}.sock"

    def describe(self) -> dict[str, str]:
        """The effective settings as an operator would write them."""
        return {
            "resource": self.resource,
            "memory-unit": str(self.memory_unit),
            "memory-reserve": describe_mib(self.memory_reserve_mib).replace(" ", ""),
            "threads": self.threads.value,
            "mps-pipe": self.mps_pipe or "off",
            "mps-check": self.mps_check.value,
            "health-checks": str(self.health_checks).lower(),
            "fail-on-init-error": str(self.fail_on_init_error).lower(),
            "kubelet-socket": self.kubelet_socket,
        }


def _check_resource(resource: str) -> None:
    match = _RESOURCE.fullmatch(resource)
    if match is None or len(match["name"]) > 63:
        raise ConfigError(
            "resource",
            resource,
            "use domain/name as in aliyun.com/gpu-mem (name: 1 to 63 characters)",
        )
    if match["domain"] == "kubernetes.io" or match["domain"].endswith(".kubernetes.io"):
        raise ConfigError(
            "resource", resource, "the kubelet keeps kubernetes.io for itself; use another domain"
        )


def _check_pipe(pipe: str | None) -> None:
    if pipe is None:
        return
    if not Path(pipe).is_absolute():
        raise ConfigError(
            "mps-pipe", pipe, "use an absolute path: it is mounted under the same name"
        )
    _check_socket("mps-pipe", pipe, Path(pipe) / "control")


def _check_socket(field: str, value: str, socket: Path) -> None:
    size = len(os.fsencode(socket))
    if size > _LONGEST_SOCKET_PATH:
        raise ConfigError(
            field,
            value,
            f"the socket {socket} has a path of {size} bytes and may have "
            f"{_LONGEST_SOCKET_PATH}; choose a directory or resource with a shorter name",
        )
    if "\0" in value:
        raise ConfigError(field, value, "a path has no zero byte")
