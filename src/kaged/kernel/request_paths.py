"""`RequestPath`: the path of a request in one spelling, and patterns that paths match.

A server may read one path in several ways: `%2F` as a slash or as part of a segment, `//` as an
empty segment or as one slash. A pattern allows a path only when every such reading matches. What
has no harmless reading (dot segments in any spelling, backslashes, escapes of escapes) is refused.
"""

from __future__ import annotations

import re
from dataclasses import field
from typing import Final

from kaged.base.errors import KagedError
from kaged.base.lazy_dataclass import dataclass

MAX_PATH_CHARS: Final = 8192
MAX_SEGMENTS: Final = 256
MAX_PATTERN_CHARS: Final = 1024
_ALLOWED = re.compile(r"/[!-\[\]^_`a-{}~|]*")  # printable ASCII without a backslash
_ESCAPE = re.compile(r"%(..?)?", re.DOTALL)
_HEX = re.compile(r"[0-9A-Fa-f]{2}")
_UNRESERVED: Final = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~")
_ANY = "*"
_ANY_SEGMENTS = "**"


class RequestPathInvalid(KagedError):
    """The path can be read in more than one way, or is no path."""

    code = "credential_path_invalid"


class PathPatternInvalid(KagedError):
    """The text is no pattern of paths."""

    code = "credential_pattern_invalid"


@dataclass(frozen=True, slots=True)
class RequestPath:
    """A path without its query. `text` is its one spelling, `readings` what servers may make of it.

    The first reading is `text` itself; most paths have no other.
    """

    text: str
    readings: tuple[tuple[str, ...], ...] = field(repr=False)


def parse_path(raw: str) -> RequestPath:
    """Return the path of a request target, without its query, in its one spelling.

    Raises:
        RequestPathInvalid: the path is too long, holds characters that paths do not have, or is
            one that two servers would understand differently.
    """
    if len(raw) > MAX_PATH_CHARS or raw.count("/") > MAX_SEGMENTS:
        raise RequestPathInvalid(
            f"The path is longer than {MAX_PATH_CHARS} characters or {MAX_SEGMENTS} segments.",
            fix="use a shorter path",
        )
    if "?" in raw or "#" in raw or not _ALLOWED.fullmatch(raw):
        raise _ambiguous("it holds characters that belong into no path")
    text = _ESCAPE.sub(_one_spelling, raw)
    readings: dict[tuple[str, ...], None] = {}
    for slashes in (text, text.replace("%2F", "/")):
        for merged in (slashes, re.sub(r"/{2,}", "/", slashes)):
            segments = tuple(merged.split("/")[1:])
            _refuse_dots(segments)
            readings[segments] = None
    return RequestPath(text, tuple(readings))


def check_pattern(pattern: str) -> str:
    """Return a pattern of paths if it is one: `*` within a segment, `**` for any segments.

    Raises:
        PathPatternInvalid: it does not begin with a slash, is too long, or holds `**` beside
            other characters of a segment.
    """
    fix = "write a path such as /repos/acme/* or /repos/**"
    if not pattern.startswith("/") or not 0 < len(pattern) <= MAX_PATTERN_CHARS:
        raise PathPatternInvalid("A path pattern begins with a slash.", fix=fix)
    if not pattern.isascii() or not pattern.isprintable() or set(pattern) & set(" ?#\\"):
        raise PathPatternInvalid(
            "A path pattern holds printable ASCII without blanks, `?`, `#` and backslashes.",
            fix=fix,
        )
    for segment in pattern.split("/")[1:]:
        if _ANY_SEGMENTS in segment and segment != _ANY_SEGMENTS:
            raise PathPatternInvalid("`**` stands alone between two slashes.", fix=fix)
        if segment in (".", ".."):
            raise PathPatternInvalid("A path pattern has no dot segments.", fix=fix)
    return pattern


def path_matches(pattern: str, path: RequestPath) -> bool:
    """Return whether every reading of a path matches a pattern."""
    wanted = tuple(pattern.split("/")[1:])
    return all(segments_match(wanted, segments) for segments in path.readings)


def path_may_match(pattern: str, path: RequestPath) -> bool:
    """Return whether any reading of a path matches a pattern: the question of a rule that denies.

    Letter case does not count here: some servers ignore it.
    """
    wanted = tuple(pattern.lower().split("/")[1:])
    return any(
        segments_match(wanted, tuple(one.lower() for one in segments)) for segments in path.readings
    )


def segments_match(pattern: tuple[str, ...], segments: tuple[str, ...]) -> bool:
    """Return whether segments match those of a pattern. Takes time in proportion to both."""
    # Row by row over the pattern: `reached[i]` says that what came so far matches segments[:i].
    reached = [True, *(False for _ in segments)]
    for one in pattern:
        if one == _ANY_SEGMENTS:
            first = reached.index(True) if True in reached else len(reached)
            reached = [place >= first for place in range(len(reached))]
            continue
        reached = [
            False,
            *(
                before and text_matches(one, segment)
                for before, segment in zip(reached, segments, strict=False)
            ),
        ]
        if True not in reached:
            return False
    return reached[-1]


def text_matches(pattern: str, text: str) -> bool:
    """Return whether a text matches a pattern in which `*` stands for any characters."""
    head, *parts = pattern.split(_ANY)
    if not parts:
        return pattern == text
    *middle, tail = parts
    if not text.startswith(head) or len(text) < len(head) + len(tail) or not text.endswith(tail):
        return False
    place, end = len(head), len(text) - len(tail)
    for part in middle:
        found = text.find(part, place, end)
        if found < 0:
            return False
        place = found + len(part)
    return True


def _one_spelling(match: re.Match[str]) -> str:
    digits = match[1] or ""
    if not _HEX.fullmatch(digits):
        raise _ambiguous("it holds a percent sign that escapes nothing")
    code = int(digits, 16)
    char = chr(code)
    if char in _UNRESERVED:
        return char
    if code < 0x20 or code == 0x7F or char == "\\":
        raise _ambiguous("it holds an escaped control character or backslash")
    if char == "%" and _HEX.match(match.string, match.end()):
        raise _ambiguous("it holds an escape of an escape")
    return f"%{digits.upper()}"


def _refuse_dots(segments: tuple[str, ...]) -> None:
    # Some servers cut what follows a semicolon off and then see a dot segment.
    for segment in segments:
        if segment.partition(";")[0] in (".", "..") or segment.lower().startswith(
            (".%3b", "..%3b")
        ):
            raise _ambiguous("it holds a dot segment")


def _ambiguous(why: str) -> RequestPathInvalid:
    return RequestPathInvalid(
        f"The path is refused because servers would read it differently: {why}.",
        fix="send the path in its plain spelling",
    )
