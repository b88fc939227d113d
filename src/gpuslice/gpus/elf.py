"""Reads the soname of a shared library: the name under which the dynamic loader searches it."""

from __future__ import annotations

import struct
from typing import BinaryIO

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_ENTRY = struct.Struct("<QQ")
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_STRTAB, _DT_SONAME = 5, 14
_LONGEST_NAME = 255
# More than any library has. A corrupt file must not take much time or memory.
_MOST_SEGMENTS, _LONGEST_TABLE = 128, 1 << 16


def soname(library: BinaryIO) -> str | None:
    """None if there is none, or if the file is not a 64-bit little-endian library."""
    try:
        return _soname(library)
    except (struct.error, UnicodeDecodeError):
        return None


def _soname(library: BinaryIO) -> str | None:
    head = _HEADER.unpack(_read(library, 0, _HEADER.size))
    ident, table, count = head[0], head[5], head[10]
    if ident[:6] != b"\x7fELF\x02\x01" or head[9] != _SEGMENT.size or count > _MOST_SEGMENTS:
        return None
    segments = list(_SEGMENT.iter_unpack(_read(library, table, count * _SEGMENT.size)))
    dynamic = next((segment for segment in segments if segment[0] == _PT_DYNAMIC), None)
    if dynamic is None or dynamic[5] > _LONGEST_TABLE:
        return None
    size = dynamic[5] - dynamic[5] % _ENTRY.size
    entries = dict(_ENTRY.iter_unpack(_read(library, dynamic[2], size)))
    if _DT_SONAME not in entries or _DT_STRTAB not in entries:
        return None
    strings = _offset(segments, entries[_DT_STRTAB])
    if strings is None:
        return None
    name = _read_some(library, strings + entries[_DT_SONAME], _LONGEST_NAME + 1)
    text, ended, _ = name.partition(b"\0")
    return text.decode() or None if ended else None


def _offset(segments: list[tuple[int, ...]], address: int) -> int | None:
    """The offset in the file of an address in memory."""
    for kind, _, offset, virtual, _, size, _, _ in segments:
        if kind == _PT_LOAD and virtual <= address < virtual + size:
            return offset + address - virtual
    return None


def _read(library: BinaryIO, offset: int, size: int) -> bytes:
    data = _read_some(library, offset, size)
    if len(data) != size:
        raise struct.error("the file is truncated")
    return data


def _read_some(library: BinaryIO, offset: int, size: int) -> bytes:
    if offset >= 1 << 62:
        raise struct.error("the offset is out of range")
    library.seek(offset)
    return library.read(size)
