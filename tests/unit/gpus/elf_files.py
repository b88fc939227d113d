"""Shared libraries of a few hundred bytes."""

from __future__ import annotations

import struct


def library(soname: str | None) -> bytes:
    """A header, a segment that maps the whole file, and the tables that lead to the name.

    Addresses differ from offsets, as they do in real libraries.
    """
    moved = 0x1000
    strings = b"\0" + (soname or "").encode() + b"\0"
    head, segments = 64, 2 * 56
    at_strings = head + segments
    at_dynamic = at_strings + len(strings)
    entries = [(5, at_strings + moved), (14, 1), (0, 0)]
    if soname is None:
        entries.remove((14, 1))
    dynamic = b"".join(struct.pack("<QQ", *entry) for entry in entries)
    size = at_dynamic + len(dynamic)
    return b"".join(
        [
            struct.pack(
                "<16sHHIQQQIHHHHHH",
                b"\x7fELF\x02\x01\x01",
                *(3, 62, 1, 0, head, 0, 0, head, 56, 2, 0, 0, 0),
            ),
            struct.pack("<IIQQQQQQ", 1, 4, 0, moved, moved, size, size, 0x1000),
            struct.pack(
                "<IIQQQQQQ",
                *(2, 4, at_dynamic, at_dynamic + moved, 0, len(dynamic), len(dynamic), 8),
            ),
            strings,
            dynamic,
        ]
    )
