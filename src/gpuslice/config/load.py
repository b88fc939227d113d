"""Flag, then environment, then file, then default: the first that speaks wins."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from gpuslice.config.errors import ConfigError
from gpuslice.config.settings import MpsCheck, Settings
from gpuslice.slicing.errors import SlicingError
from gpuslice.slicing.limits import ThreadShare
from gpuslice.slicing.units import MemoryUnit, parse_mib

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Given:
    """What flags and environment say. None: not said, so the file or the default decides."""

    resource: str | None = None
    memory_unit: str | None = None
    memory_reserve: str | None = None
    threads: str | None = None
    mps_pipe: str | None = None
    mps_check: str | None = None
    health_checks: bool | None = None
    fail_on_init_error: bool | None = None
    kubelet_socket: str | None = None
    config_file: str | None = None


def load_settings(given: Given, defaults: Settings | None = None) -> Settings:
    """Reads and checks everything anew; raises ConfigError and changes nothing if it is wrong."""
    base = defaults or Settings()
    given = _filled_from_file(given)
    return Settings(
        resource=_or(given.resource, base.resource),
        memory_unit=_unit(given.memory_unit, base.memory_unit),
        memory_reserve_mib=_reserve(given.memory_reserve, base.memory_reserve_mib),
        threads=_threads(given.threads, base.threads),
        # An empty directory name is how a flag says "no MPS" against the file.
        mps_pipe=_or(given.mps_pipe, base.mps_pipe) or None,
        mps_check=_mps_check(given.mps_check, base.mps_check),
        health_checks=_or(given.health_checks, base.health_checks),
        fail_on_init_error=_or(given.fail_on_init_error, base.fail_on_init_error),
        kubelet_socket=_or(given.kubelet_socket, base.kubelet_socket),
    )


def _filled_from_file(given: Given) -> Given:
    if not given.config_file:
        return given
    # Imported here: an agent without a file does without the YAML parser's memory.
    from gpuslice.config.file import read_config_file

    file = read_config_file(Path(given.config_file))
    memory = file.sharing.memory
    if memory.mps.check is True:
        raise ConfigError("sharing.memory.mps.check", True, "choose one of require, auto, off")
    return replace(
        given,
        resource=_or(given.resource, memory.resource),
        memory_unit=_or(given.memory_unit, memory.unit),
        memory_reserve=_or(given.memory_reserve, "0" if memory.reserve == 0 else memory.reserve),
        threads=_or(given.threads, memory.threads),
        mps_pipe=_or(given.mps_pipe, memory.mps.pipe_directory),
        mps_check=_or(given.mps_check, "off" if memory.mps.check is False else memory.mps.check),
        health_checks=_or(given.health_checks, file.health.enabled),
        fail_on_init_error=_or(given.fail_on_init_error, file.flags.fail_on_init_error),
    )


def _or(said: _T | None, otherwise: _T) -> _T:
    return otherwise if said is None else said


def _unit(text: str | None, default: MemoryUnit) -> MemoryUnit:
    if text is None:
        return default
    try:
        return MemoryUnit.parse(text)
    except SlicingError as error:
        raise ConfigError("memory-unit", text, str(error)) from error


def _reserve(text: str | None, default: int) -> int:
    if text is None:
        return default
    if text.strip() == "0":
        return 0
    try:
        return parse_mib(text)
    except SlicingError as error:
        raise ConfigError("memory-reserve", text, str(error)) from error


def _threads(text: str | None, default: ThreadShare) -> ThreadShare:
    if text is None:
        return default
    try:
        return ThreadShare(text)
    except ValueError:
        names = ", ".join(share.value for share in ThreadShare)
        raise ConfigError("threads", text, f"choose one of {names}") from None


def _mps_check(text: str | None, default: MpsCheck) -> MpsCheck:
    if text is None:
        return default
    try:
        return MpsCheck(text)
    except ValueError:
        names = ", ".join(check.value for check in MpsCheck)
        raise ConfigError("mps-check", text, f"choose one of {names}") from None
