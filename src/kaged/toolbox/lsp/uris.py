"""File URIs: percent-encoded, and back to the very same path."""

from __future__ import annotations

import os
import re
from typing import Final
from urllib.parse import quote_from_bytes, unquote_to_bytes

_PREFIX: Final = "file://"
_KEPT: Final = "/-._~"
_PLAIN: Final = re.compile(r"file:///[A-Za-z0-9_./~+@-]*")  # nearly all: nothing to decode


def to_uri(path: str) -> str:
    """Write an absolute path as a file URI; every byte of it survives."""
    return _PREFIX + quote_from_bytes(os.fsencode(path), safe=_KEPT)


def from_uri(uri: object) -> str | None:
    """Read the path out of a file URI; None for anything else, such as a virtual document."""
    if not isinstance(uri, str):
        return None
    if _PLAIN.fullmatch(uri):
        return os.path.normpath(uri[len(_PREFIX) :])
    if not uri.lower().startswith(_PREFIX):
        return None
    rest = uri[len(_PREFIX) :].partition("#")[0].partition("?")[0]
    host, slash, tail = rest.partition("/")
    if not slash or host.lower() not in {"", "localhost"}:
        return None
    raw = unquote_to_bytes("/" + tail)
    if b"\0" in raw:
        return None
    return os.path.normpath(os.fsdecode(raw))
