"""`fit_lines`: head and tail of a text that is too long for a window, with a note between. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

BYTES_PER_TOKEN: Final = 4
"""How many bytes count as one token, everywhere in the daemon; windows correct it by what the
vendor counts."""

MIN_RESULT_TOKENS: Final = 500
"""So much of a result is shown however full a window is."""

WRAP_CHARS: Final = 1000
"""Longer lines of a result that does not fit are broken, or they could not be read in pieces."""

_HEAD_SHARE: Final = 0.6
_NOTE_BYTES: Final = 400
"""What is kept free for the note."""

LeftOut = Callable[[int, int, int], str]
"""Says, on one line, what is missing: the first and the last line, and how many bytes."""


def tokens_of(text: str) -> int:
    """Estimate the tokens of a text."""
    return -(-size_of(text) // BYTES_PER_TOKEN)


def size_of(text: str) -> int:
    """Return how many bytes a text has."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def wrapped(text: str) -> str:
    """Break the lines of a text that are longer than `WRAP_CHARS`."""
    if all(len(line) <= WRAP_CHARS for line in text.split("\n")):
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _pieces(line))


def fit_lines(
    head: str,
    text: str,
    first: int,
    limit_tokens: int,
    left_out: LeftOut,
    *,
    least: int = MIN_RESULT_TOKENS,
) -> str:
    """Return `head` and the lines of `text` that fit, of its beginning and of its end.

    `first` is the number of its first line. The whole is never larger than `limit_tokens`, or than
    `least` if that is more.
    """
    room = max(limit_tokens, least) * BYTES_PER_TOKEN
    front = f"{head}\n" if head else ""
    if size_of(front) + size_of(text) <= room:
        return front + text
    # A head of hundreds of short values is a text like any other.
    front = _prefix(front, room // 3)
    left = room - size_of(front) - _NOTE_BYTES
    lines = text.split("\n")
    start = _fitting(lines, int(left * _HEAD_SHARE))
    kept = lines[:start]
    used = sum(size_of(line) + 1 for line in kept)
    rest = lines[start:]
    end = len(lines) - _fitting(rest[::-1], left - used)
    missing = sum(size_of(line) + 1 for line in lines[start:end])
    if not start and end:
        # Not even one line fits; its beginning says more than nothing.
        kept = [_prefix(lines[0], int(left * _HEAD_SHARE))]
    note = _prefix(left_out(first + start, first + end - 1, missing), _NOTE_BYTES - 2)
    return front + "\n".join((*kept, note, *lines[end:]))


def _fitting(lines: Sequence[str], limit: int) -> int:
    """Return how many lines from the first on fit."""
    size = 0
    for number, line in enumerate(lines):
        size += size_of(line) + 1
        if size > limit:
            return number
    return len(lines)


def _prefix(text: str, limit: int) -> str:
    if size_of(text) <= limit:
        return text
    return text.encode("utf-8", "surrogatepass")[:limit].decode("utf-8", "ignore")


def _pieces(line: str) -> Iterator[str]:
    if len(line) <= WRAP_CHARS:
        yield line
        return
    for at in range(0, len(line), WRAP_CHARS):
        yield line[at : at + WRAP_CHARS]
