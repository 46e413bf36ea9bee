"""Where a placeholder stands that should not: `holds_placeholder`, and `PlaceholderWatch`.

A placeholder is worthless by itself. That one turns up in a body or in a foreign header is looked
for because it tells that somebody tries something, and because a server would only log it.
"""

from __future__ import annotations

import base64
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from kaged.credentials.needles import FEW_BYTES
from kaged.credentials.refusals import RefusalRule, refused
from kaged.kernel.bindings import PLACEHOLDER_PREFIX

PLACEHOLDER_BYTES: Final = 36
_ROUNDS: Final = 3
_RAW = re.compile(rb"(?i:kgd_[a-z2-7]{32})")
_PREFIX: Final = PLACEHOLDER_PREFIX.encode()
_BASE64 = re.compile(rb"[A-Za-z0-9+/_-]{48,}")


def _base64_prefixes() -> tuple[bytes, ...]:
    """Return what `kgd_` begins with in base64, after no, one or two other bytes."""
    found: list[bytes] = []
    for offset in range(3):
        start, end = -(-offset * 8 // 6), (offset + len(_PREFIX)) * 8 // 6
        found.append(base64.b64encode(bytes(offset) + _PREFIX)[start:end])
    return tuple(found)


_BASE64_PREFIXES: Final = _base64_prefixes()


def holds_placeholder(data: bytes) -> bool:
    """Return whether a short text holds a placeholder: plain, escaped, in hex or in base64."""
    for _ in range(_ROUNDS):
        if _RAW.search(data):
            return True
        if b"%" not in data:
            break
        data = unquote_to_bytes(data)
    if _PREFIX.hex().encode() in data.lower():
        return True
    for run in _BASE64.findall(data) if len(data) >= 48 else ():
        if any(one in run for one in _BASE64_PREFIXES) and _in_base64(run):
            return True
    return False


def _in_base64(run: bytes) -> bool:
    standard = run.translate(bytes.maketrans(b"-_", b"+/"))
    for offset in range(4):
        cut = standard[offset:]
        if len(cut) % 4 == 1:
            cut = cut[:-1]
        if _RAW.search(base64.b64decode(cut + b"=" * (-len(cut) % 4))):
            return True
    return False


class PlaceholderWatch:
    """Watches a body for placeholders while it streams; keeps back what is one's beginning.

    As in `StreamWindow`, the first few bytes of one go on, or messages would wait for the next.
    """

    def __init__(self) -> None:
        self._tail = b""
        self._sent = 0

    def feed(self, data: bytes) -> bytes:
        """Return what may go on.

        Raises:
            RequestRefused: a placeholder stands there.
        """
        if self._tail:
            data = self._tail + data
        # Looking for the plain beginning is many times as fast as the pattern.
        if data.lower().find(_PREFIX) >= 0 and _RAW.search(data):
            raise refused(
                RefusalRule.BODY,
                "The body of the request holds a placeholder of a credential.",
                "send a placeholder by itself, in the place that its credential is bound to",
            )
        match = _BEGUN.search(data[-(PLACEHOLDER_BYTES - 1) :])
        begun = len(match[0]) if match else 0
        rest = len(data) - begun
        out = data[self._sent :] if begun < FEW_BYTES else data[self._sent : rest]
        self._sent = begun if begun < FEW_BYTES else max(0, self._sent - rest)
        self._tail = data[rest:]
        return out

    def end(self) -> bytes:
        """Return what was kept; the body is over."""
        kept, self._tail, self._sent = self._tail[self._sent :], b"", 0
        return kept


_BEGUN = re.compile(rb"(?i:k(?:g(?:d(?:_[a-z2-7]*)?)?)?)\Z")
