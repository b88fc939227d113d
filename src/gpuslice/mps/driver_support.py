"""What MPS supports, by driver version."""

from __future__ import annotations

from gpuslice.slicing.limits import MPS_CLIENTS_PER_GPU

_FIRST_BRANCH_WITH_60_CLIENTS = 590
# Drivers of the 535 and 550 branches do not apply limits keyed by UUID.
_FIRST_BRANCH_WITH_UUID_KEYS = 560
# CUDA 13.1.
_FIRST_BRANCH_WITH_STATIC_PARTITIONS = 590
_FIRST_BRANCH_WITH_NAMESPACES = 615
# Earlier control programs do not start a daemon with an argument that they do not know.
_FIRST_BRANCH_WITH_MULTI_USER_SERVERS = 555


def most_clients(driver_version: str) -> int:
    """CUDA contexts that MPS serves per GPU (Volta and newer) at its default settings."""
    branch = _branch(driver_version)
    return (
        60
        if branch is not None and branch >= _FIRST_BRANCH_WITH_60_CLIENTS
        else (MPS_CLIENTS_PER_GPU)
    )


def applies_uuid_keys(driver_version: str) -> bool:
    """Whether a memory limit may name its GPU by UUID."""
    branch = _branch(driver_version)
    return branch is None or branch >= _FIRST_BRANCH_WITH_UUID_KEYS


def has_multi_user_servers(driver_version: str) -> bool:
    """Whether the control program has -multiuser-server. No, if the version is not known."""
    branch = _branch(driver_version)
    return branch is not None and branch >= _FIRST_BRANCH_WITH_MULTI_USER_SERVERS


def has_static_partitions(driver_version: str) -> bool:
    """Whether a daemon can be started with -S."""
    branch = _branch(driver_version)
    return branch is not None and branch >= _FIRST_BRANCH_WITH_STATIC_PARTITIONS


def has_namespaces(driver_version: str) -> bool:
    """Whether a daemon can be started with -p 3."""
    branch = _branch(driver_version)
    return branch is not None and branch >= _FIRST_BRANCH_WITH_NAMESPACES


def _branch(driver_version: str) -> int | None:
    text = driver_version.partition(".")[0]
    return int(text) if text.isascii() and text.isdigit() else None
