"""`sendable_headers`: which headers of a policy may go out with a request. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

MAX_HEADERS: Final = 64
MAX_VALUE_CHARS: Final = 16 * 1024

_NAME: Final = re.compile(r"[a-z0-9!#$%&'*+.^_`|~-]{1,128}")
_VALUE: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# The connection and the protocol on it are the daemon's own.
_KEPT: Final = frozenset(
    {
        "accept",
        "connection",
        "content-length",
        "content-type",
        "expect",
        "host",
        "keep-alive",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_KEPT_PREFIXES: Final = ("mcp-", "proxy-")


def sendable_headers(wanted: Mapping[str, str]) -> dict[str, str]:
    """Return those that may be sent, by names in lower case; the others are left out."""
    found: dict[str, str] = {}
    for name, value in wanted.items():
        key = name.lower()
        if (
            len(found) < MAX_HEADERS
            and _NAME.fullmatch(key) is not None
            and key not in _KEPT
            and not key.startswith(_KEPT_PREFIXES)
            and len(value) <= MAX_VALUE_CHARS
            and _VALUE.fullmatch(value) is not None
        ):
            found[key] = value
    return found
