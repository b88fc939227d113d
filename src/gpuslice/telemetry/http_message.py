"""Requests and answers of HTTP, as far as probes and Prometheus need it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from http import HTTPStatus

LONGEST_HEAD = 16 * 1024

_PLAIN = "text/plain; charset=utf-8"
_END = re.compile(rb"\r?\n\r?\n")
_REQUEST_LINE = re.compile(r"([A-Z]+) ([^ ?]+)(?:\?[^ ]*)? HTTP/1\.[01]")


@dataclass(frozen=True, slots=True)
class Request:
    method: str
    path: str
    accept: str = ""


@dataclass(frozen=True, slots=True)
class Page:
    status: HTTPStatus
    body: bytes
    content_type: str = _PLAIN


def is_complete(head: bytes) -> bool:
    return _END.search(head) is not None


def parse_request(head: bytes) -> Request | None:
    """None if this is not an HTTP request. What follows the first request is ignored."""
    end = _END.search(head)
    if end is None:
        return None
    first, *fields = head[: end.start()].decode("latin-1").split("\n")
    match = _REQUEST_LINE.fullmatch(first.rstrip("\r"))
    if match is None:
        return None
    accept = ""
    for field in fields:
        name, _, value = field.partition(":")
        if name.lower() == "accept":
            accept = value.strip()
    return Request(match[1], match[2], accept)


def render_answer(page: Page, *, with_body: bool = True) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + (page.body if with_body else b"")
