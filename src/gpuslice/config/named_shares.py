"""Parses the shares of an entry of sharing.mps.resources."""

from __future__ import annotations

from gpuslice.config.errors import ConfigError
from gpuslice.config.file_schema import LimitedResource, NamedShareEntry
from gpuslice.config.value_parsers import (
    parse_memory_size,
    parse_resource_name,
    parse_share_threads,
)
from gpuslice.slicing.rules import NamedShare
from gpuslice.slicing.threads import ThreadRule, ThreadStrategy


def parse_named_shares(
    key: str, entry: LimitedResource, resource: str, threads: ThreadRule
) -> tuple[NamedShare, ...]:
    """`threads` is that of the entry, for shares without their own. Raises ConfigError."""
    if entry.shares is None:
        return ()
    if entry.replicas is not None:
        raise ConfigError(
            f"{key}.replicas", entry.replicas, "use replicas for equal shares, or shares, not both"
        )
    if not entry.shares:
        raise ConfigError(f"{key}.shares", [], "list at least one share, or use replicas")
    if threads is ThreadStrategy.SM_PARTITION:
        parse_share_threads(f"{key}.threads", threads.value)
    shares = tuple(
        _parse(f"{key}.shares[{position}]", one, resource, threads)
        for position, one in enumerate(entry.shares)
    )
    names = [share.name for share in shares]
    for position, name in enumerate(names):
        if name in names[:position]:
            raise ConfigError(
                f"{key}.shares[{position}].name",
                name,
                "another share has this name; use count for several equal shares",
            )
    return shares


def _parse(key: str, entry: NamedShareEntry, resource: str, threads: ThreadRule) -> NamedShare:
    if not entry.name:
        raise ConfigError(
            f"{key}.name", entry.name, "no name specified; it is added to the resource name"
        )
    parse_resource_name(f"{key}.name", f"{resource}.{entry.name}")
    if entry.memory is None:
        raise ConfigError(f"{key}.memory", None, "no memory specified; use a size such as 4GiB")
    if entry.count < 1:
        raise ConfigError(f"{key}.count", entry.count, "use 1 or more")
    return NamedShare(
        entry.name,
        parse_memory_size(f"{key}.memory", str(entry.memory)),
        threads
        if entry.threads is None
        else parse_share_threads(f"{key}.threads", str(entry.threads)),
        entry.count,
    )
