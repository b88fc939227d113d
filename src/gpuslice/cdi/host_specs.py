"""The host's own CDI specification, as `nvidia-ctk cdi generate` writes it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import yaml

from gpuslice.cdi.bound_specs import is_own_file
from gpuslice.codes import Code
from gpuslice.telemetry.logs import Logger

log = Logger(__name__)

# Where container runtimes look.
HOST_DIRECTORIES = (Path("/etc/cdi"), Path("/var/run/cdi"))

_KIND = "nvidia.com/gpu"
# Specifications of large nodes have some hundred kilobytes.
_LARGEST_FILE = 16 * 1024 * 1024


def host_names(
    directories: Iterable[Path], uuids: Sequence[str], driver_version: str
) -> dict[str, str] | None:
    """UUID -> qualified name, from a file that has all devices and matches the driver.

    All or none: two specifications would inject the driver into one container twice.
    """
    for directory in dict.fromkeys(directories):
        for path in _specifications(directory):
            named = _device_names(path, driver_version)
            if uuids and named.issuperset(uuids):
                return {uuid: f"{_KIND}={uuid}" for uuid in uuids}
    return None


def _specifications(directory: Path) -> list[Path]:
    """The files that a container runtime reads there."""
    try:
        paths = sorted(directory.iterdir())
    except OSError:
        return []
    return [
        path
        for path in paths
        # Whoever reads specifications of containers counts as a runtime that applies them.
        if path.suffix in (".json", ".yaml") and not is_own_file(path) and path.is_file()
    ]


def _device_names(path: Path, driver_version: str) -> frozenset[str]:
    """Names of GPUs in a file; none if it is of another kind or for another driver."""
    try:
        if path.stat().st_size > _LARGEST_FILE:
            return frozenset()
        text = path.read_text()
        if _KIND not in text:
            return frozenset()
        content = json.loads(text) if path.suffix == ".json" else _load_yaml(text)
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        log.warning(
            Code.HOST_CDI_SPEC_IGNORED,
            "cannot read a CDI specification of the host",
            file=str(path),
            reason=error,
        )
        return frozenset()
    if not isinstance(content, dict) or content.get("kind") != _KIND:
        return frozenset()
    if driver_version not in text:
        log.warning(
            Code.HOST_CDI_SPEC_IGNORED,
            "ignoring a CDI specification of the host: it is for another driver",
            file=str(path),
            driver=driver_version,
            remedy="run nvidia-ctk cdi generate again",
        )
        return frozenset()
    devices = content.get("devices")
    entries = devices if isinstance(devices, list) else []
    names = (entry.get("name") for entry in entries if isinstance(entry, dict))
    return frozenset(name for name in names if isinstance(name, str))


def _load_yaml(text: str) -> object:
    return yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
