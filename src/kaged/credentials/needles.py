"""What to look for in streams: `Needles`, the spellings of some texts, and `StreamWindow`.

Bytes stream through a window that keeps back only what is the beginning of a needle, so a needle is
found wherever a stream is cut, and nothing else waits.
"""

from __future__ import annotations

import base64
import html
import json
import re
from typing import Final
from urllib.parse import quote, quote_plus

SHORTEST: Final = 6
"""Shorter spellings would be found in ordinary words."""
FEW_BYTES: Final = 4
MAX_TEXTS: Final = 256
_STAR: Final = b"*"
_URL_SAFE: Final = bytes.maketrans(b"+/", b"-_")


class Needles:
    """Spellings of texts, found by one pattern; grows while its streams run.

    A text is spelled as it is, in other letter case, in hex, in base64 at its three offsets and
    both alphabets, and escaped as in URLs, JSON and HTML. Whoever runs code at the other end can
    spell it in ways without end; this finds accidents and plain echoes.
    """

    def __init__(self) -> None:
        self._texts: dict[str, None] = {}
        self._spelled: tuple[bytes, ...] = ()
        self._longest = 0
        self._firsts: frozenset[int] = frozenset()
        self._pattern: re.Pattern[bytes] | None = None

    def __bool__(self) -> bool:
        """Return whether there is anything to look for."""
        return self._pattern is not None

    def add(self, *texts: str) -> None:
        """Look for these texts as well."""
        new = [one for one in texts if one and one not in self._texts]
        if not new:
            return
        self._texts.update(dict.fromkeys(new))
        while len(self._texts) > MAX_TEXTS:  # renewed again and again; the oldest ones are expired
            del self._texts[next(iter(self._texts))]
        found: dict[bytes, None] = {}
        for text in self._texts:
            found.update(dict.fromkeys(one.lower() for one in spellings(text)))
        if not found:
            return
        self._spelled = tuple(sorted(found, key=len, reverse=True))
        self._longest = len(self._spelled[0])
        self._firsts = frozenset(one[0] for one in self._spelled)
        # Letter case does not count, not even where it should: more is found, nothing is missed.
        self._pattern = re.compile(b"|".join(map(re.escape, self._spelled)), re.IGNORECASE)

    def found_in(self, data: bytes) -> bool:
        """Return whether a spelling stands in the data."""
        # Looking for whole texts, one by one, is many times as fast as the pattern.
        folded = data.lower()
        return any(folded.find(one) >= 0 for one in self._spelled)

    def starred(self, data: bytes) -> bytes:
        """Return the data with as many stars in place of each spelling, so that lengths stay."""
        if self._pattern is None or not self.found_in(data):
            return data
        return self._pattern.sub(lambda match: _STAR * len(match[0]), data)

    def begun_at_end(self, data: bytes) -> int:
        """Return how many bytes at the end may be the beginning of a spelling."""
        tail = data[max(0, len(data) - self._longest + 1) :].lower()
        for start, first in enumerate(tail):
            if first in self._firsts:
                rest = tail[start:]
                if any(one.startswith(rest) for one in self._spelled):
                    return len(rest)
        return 0


def spellings(text: str) -> tuple[bytes, ...]:
    """Return what a text may look like in a request or an answer, longest first."""
    raw = text.encode("utf-8", "surrogatepass")
    inner = [_inner_base64(raw, offset) for offset in range(3)]
    found = [
        raw,
        raw.hex().encode(),
        *inner,
        *(one.translate(_URL_SAFE) for one in inner),
        quote(text, safe="").encode(),
        quote_plus(text, safe="").encode(),
        quote(quote(text, safe=""), safe="").encode(),
        json.dumps(text)[1:-1].encode(),
        json.dumps(text, ensure_ascii=False)[1:-1].encode("utf-8", "surrogatepass"),
        json.dumps(text)[1:-1].replace("/", "\\/").encode(),
        json.dumps(json.dumps(text)[1:-1])[1:-1].encode(),
        html.escape(text).encode("utf-8", "surrogatepass"),
        text.replace("\n", "\\n").encode("utf-8", "surrogatepass"),
    ]
    long = dict.fromkeys(one for one in found if len(one) >= SHORTEST)
    return tuple(sorted(long, key=len, reverse=True))


def _inner_base64(raw: bytes, offset: int) -> bytes:
    """Return the characters that stand for these bytes alone, `offset` bytes after a boundary."""
    whole = base64.b64encode(bytes(offset) + raw).rstrip(b"=")
    start = -(-offset * 8 // 6)  # the first character without a bit of what stands before
    return whole[start : (offset + len(raw)) * 8 // 6]


class StreamWindow:
    """One direction of a body: `feed` returns what may go on, without any needle.

    What is the beginning of a needle stays behind until more has come or the stream is over. A
    beginning of a few bytes does not: every other message ends with one, and who waits for the
    message would wait for the next. It is remembered, and only the rest of the needle is starred.
    """

    def __init__(self, needles: Needles) -> None:
        self._needles = needles
        self._tail = b""
        self._sent = 0  # how much of the tail has gone on already

    def feed(self, data: bytes) -> bytes:
        """Return what may go on of this and of what was kept."""
        if not self._needles:
            return data
        data = self._needles.starred(self._tail + data if self._tail else data)
        begun = self._needles.begun_at_end(data)
        rest = len(data) - begun
        out = data[self._sent :] if begun < FEW_BYTES else data[self._sent : rest]
        self._sent = begun if begun < FEW_BYTES else max(0, self._sent - rest)
        self._tail = data[rest:]
        return out

    def end(self) -> bytes:
        """Return what was kept; the stream is over."""
        kept, self._tail, self._sent = self._tail[self._sent :], b"", 0
        return kept
