"""`PageContent`: the type and the text of what a server sent. Pure."""

from __future__ import annotations

import codecs
import json
import re
from enum import StrEnum
from typing import Final

from kaged.toolbox.web.html_scanner import words
from kaged.toolbox.web.page_blocks import MAX_PAGE_CHARS

SNIFFED_BYTES: Final = 1024
MAX_MIME_CHARS: Final = 100

HTML: Final = frozenset({"text/html", "application/xhtml+xml"})
_TEXTS: Final = words(
    "application/json application/xml application/javascript application/ecmascript "
    "application/x-ndjson application/jsonl application/yaml application/x-yaml application/toml "
    "application/x-sh application/sql application/graphql application/xhtml+xml "
    "application/x-javascript application/rtf message/rfc822"
)
_MIME: Final = re.compile(r"[a-z0-9][a-z0-9!#$&^_.+-]{0,60}/[a-z0-9][a-z0-9!#$&^_.+-]{0,60}")
_CHARSET: Final = re.compile(r"charset\s{0,9}=\s{0,9}[\"']?([A-Za-z0-9_:.-]{1,40})", re.IGNORECASE)
# Those that pages are written in; a codec of Python that is none of them is not run on a page.
_CHARSETS: Final = re.compile(
    r"utf_?8|utf_?16(_?[lb]e)?|us_ascii|ascii|(iso_?8859_|latin_?|l)\d{1,2}|(windows_|cp)12\d\d"
    r"|koi8_[ru]|shift_?jis|sjis|euc_(jp|kr)|iso_2022_jp|gb2312|gbk|gb18030|big5(_hkscs)?"
    r"|macintosh|mac_roman|ibm866|cp866"
)
_AS_BROWSERS_DO: Final = {
    **dict.fromkeys(("iso8859_1", "iso_8859_1", "latin1", "latin_1", "l1", "us_ascii"), "cp1252"),
    "ascii": "cp1252",
    "macintosh": "mac_roman",
    "ibm866": "cp866",
}
_MARKS: Final = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)


class PageKind(StrEnum):
    """What a page is made of, as far as it is treated differently."""

    HTML = "html"
    JSON = "json"
    TEXT = "text"
    OTHER = "other"


def mime_of(header: str) -> str:
    """Return the type that a `Content-Type` names; empty when it names none."""
    mime = header.partition(";")[0].strip().lower()[:MAX_MIME_CHARS]
    return mime if _MIME.fullmatch(mime) else ""


def kind_of(mime: str) -> PageKind:
    """Return what a type is. No type is text until its bytes say otherwise."""
    if mime in HTML:
        return PageKind.HTML
    if mime == "application/json" or mime.endswith("+json"):
        return PageKind.JSON
    if not mime or mime.startswith("text/") or mime in _TEXTS or mime.endswith("+xml"):
        return PageKind.TEXT
    return PageKind.OTHER


def kind_of_bytes(kind: PageKind, mime: str, body: bytes) -> PageKind:
    """Return what a page is when its first bytes are known."""
    start = body[:SNIFFED_BYTES]
    wide = start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    if kind is PageKind.OTHER or (b"\0" in start and not wide):
        return PageKind.OTHER
    if not mime and start.lstrip().lower().startswith((b"<!doctype html", b"<html")):
        return PageKind.HTML
    return kind


def decoded(body: bytes, header: str, kind: PageKind) -> str:
    """Return the text of a page: by its byte order mark, its header, its own word, or UTF-8."""
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace")
    said = _CHARSET.search(header)
    named = None if said is None else said.group(1)
    if named is None and kind is PageKind.HTML:
        inside = _CHARSET.search(body[:SNIFFED_BYTES].decode("latin-1"))
        named = None if inside is None else inside.group(1)
        if named is not None and "16" in named:
            named = "utf-8"  # or these words could not have been read
    codec = None if named is None else _codec(named)
    if codec is not None:
        return body.decode(codec, "replace")
    try:
        return body.decode("utf-8")
    except UnicodeDecodeError:
        return body.decode("cp1252" if kind is PageKind.HTML else "utf-8", "replace")


def pretty_json(text: str) -> str:
    """Return JSON with a line for each value; as it is where that would not stay readable."""
    pieces: list[str] = []
    size = 0
    try:
        for piece in json.JSONEncoder(indent=2, ensure_ascii=False).iterencode(json.loads(text)):
            pieces.append(piece)
            size += len(piece)
            if size > MAX_PAGE_CHARS:
                return text
    except (ValueError, RecursionError):
        return text
    return "".join(pieces)


def _codec(named: str) -> str | None:
    name = named.lower().replace("-", "_").replace(":", "_")
    if not _CHARSETS.fullmatch(name):
        return None
    name = _AS_BROWSERS_DO.get(name, name)
    try:
        return codecs.lookup(name).name
    except LookupError:
        return None
