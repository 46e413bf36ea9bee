"""`Replacement`: exact text found in a file's bytes and replaced there; nothing else is touched.

Works on bytes, so that what lies outside the replaced regions stays as it is whatever its
encoding. Only line endings are taken leniently, because file.read does not show them: where the
file has CRLF, a newline in the texts means CRLF.
"""

from __future__ import annotations

import re
from dataclasses import replace as replace_fields
from itertools import islice
from typing import Final, Literal, TypeAlias

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.files.window import BOM

Match: TypeAlias = Literal["exact", "line_endings"]
Span: TypeAlias = tuple[int, int]

MAX_SPANS: Final = 200_000
"""So many places are replaced in one edit; of more than that only the first few are found."""

_FEW: Final = 10


@dataclass(frozen=True, slots=True)
class TextMatch:
    """Where a text is in a file. `count` is at least 2 when the place is not unique.

    With a `count` over `MAX_SPANS`, `spans` holds the first few places only.
    """

    spans: tuple[Span, ...]
    count: int
    match: Match = "exact"
    crlf: bool = False
    """Whether the file has CRLF throughout, so that a newline in the new text is one, too."""


@dataclass(frozen=True, slots=True)
class Replacement:
    """One edit of a text, ready to be shown and written."""

    before: bytes
    after: bytes
    spans: tuple[Span, ...]
    pieces: tuple[bytes, ...]
    """What stands in place of each span."""
    match: Match


def split_bom(data: bytes) -> tuple[bytes, bytes]:
    """Return the byte order mark, if there is one, and the text behind it."""
    return (BOM, data[len(BOM) :]) if data.startswith(BOM) else (b"", data)


def find(body: bytes, old: bytes) -> TextMatch:
    """Find all places of `old` that do not overlap; none gives an empty `TextMatch`."""
    breaks = body.count(b"\r\n")
    if breaks and breaks == body.count(b"\n"):
        # CRLF throughout: this is the exact text, written as the file writes it.
        return replace_fields(_find_exact(body, _with_crlf(old)), crlf=True)
    found = _find_exact(body, old)
    if not found.spans and b"\n" in old and (breaks or b"\r\n" in old):
        return _find_any_ending(body, old)
    return found


def replace(body: bytes, found: TextMatch, new: bytes) -> Replacement:
    """Put `new` in place of every span, with the line endings of the place."""
    pieces: list[bytes] = []
    parts: list[bytes] = []
    at = 0
    for start, end in found.spans:
        crlf = found.crlf or (found.match == "line_endings" and _is_crlf_at(body, start, end))
        piece = _with_crlf(new) if crlf else new
        pieces.append(piece)
        parts += (body[at:start], piece)
        at = end
    parts.append(body[at:])
    return Replacement(body, b"".join(parts), found.spans, tuple(pieces), found.match)


def _find_exact(body: bytes, old: bytes) -> TextMatch:
    count = body.count(old)
    spans: list[Span] = []
    at = body.find(old)
    wanted = count if count <= MAX_SPANS else _FEW
    while len(spans) < wanted:
        spans.append((at, at + len(old)))
        at = body.find(old, at + len(old))
    if count == 1 and body.find(old, spans[0][0] + 1) >= 0:
        # "aa" is in "aaa" twice; which one was meant cannot be known.
        count = 2
    return TextMatch(tuple(spans), count)


def _find_any_ending(body: bytes, old: bytes) -> TextMatch:
    pattern = rb"\r?\n".join(re.escape(part) for part in old.replace(b"\r\n", b"\n").split(b"\n"))
    spans = tuple(one.span() for one in islice(re.finditer(pattern, body), MAX_SPANS + 1))
    return TextMatch(spans, len(spans), "line_endings")


def _is_crlf_at(body: bytes, start: int, end: int) -> bool:
    """Return which line ending a place uses, by the first one in it."""
    at = body.find(b"\n", start, end)
    return at > 0 and body[at - 1 : at] == b"\r"


def _with_crlf(text: bytes) -> bytes:
    return text.replace(b"\r\n", b"\n").replace(b"\n", b"\r\n")
