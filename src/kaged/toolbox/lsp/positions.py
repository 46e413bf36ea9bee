"""Columns and lines: ours (lines from 1, columns in characters from 0) and a server's.

A server counts lines from 0 and columns in the units of the negotiated encoding; UTF-16 unless it
says otherwise. Files are named by URI, percent-encoded, and back to the very same path.
"""

from __future__ import annotations

import os
import re
from enum import StrEnum
from typing import Final, cast
from urllib.parse import quote_from_bytes, unquote_to_bytes

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_PREFIX: Final = "file://"
_KEPT: Final = "/-._~"
_PLAIN: Final = re.compile(r"file:///[A-Za-z0-9_./~+@-]*")  # nearly all: nothing to decode


class Encoding(StrEnum):
    """The units in which a server counts columns."""

    UTF8 = "utf-8"
    UTF16 = "utf-16"
    UTF32 = "utf-32"


@dataclass(frozen=True, slots=True, order=True)
class Spot:
    """A place in a text as tools name it: line from 1, column in characters from 0."""

    line: int
    character: int

    def as_json(self) -> JsonObject:
        """Return it as a tool's result has it."""
        return {"line": self.line, "character": self.character}


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A stretch of text from one spot to another, the end not included."""

    start: Spot
    end: Spot

    def as_json(self) -> JsonObject:
        """Return it as a tool's result has it."""
        return {"start": self.start.as_json(), "end": self.end.as_json()}


class SourceText:
    """A text with its lines found once, for many conversions."""

    __slots__ = ("_starts", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self._starts = [0, *(found.end() for found in _LINE_END.finditer(text))]

    @property
    def line_count(self) -> int:
        """How many lines the text has; one more than its line ends."""
        return len(self._starts)

    def line(self, number: int) -> str:
        """Return a line, counted from 1, without its end; empty when there is no such line."""
        if not 1 <= number <= len(self._starts):
            return ""
        start = self._starts[number - 1]
        end = self._starts[number] if number < len(self._starts) else len(self.text)
        return self.text[start:end].rstrip("\r\n")

    def offset(self, spot: Spot) -> int:
        """Return where a spot lies in the text; beyond a line's end counts as its end."""
        if spot.line > len(self._starts):
            return len(self.text)
        column = min(spot.character, len(self.line(spot.line)))
        return self._starts[spot.line - 1] + column

    def to_server(self, spot: Spot, encoding: Encoding) -> JsonObject:
        """Return a spot as a position of the server's."""
        units = to_units(self.line(spot.line), spot.character, encoding)
        return {"line": spot.line - 1, "character": units}

    def from_server(self, position: JsonValue, encoding: Encoding) -> Spot:
        """Read a position of the server's; one that makes no sense becomes the nearest that does.

        Raises TypeError when it is no position at all.
        """
        line, units = position_numbers(position)
        column = from_units(self.line(line + 1), units, encoding)
        return Spot(line + 1, column)

    def span_from_server(self, value: JsonValue, encoding: Encoding) -> TextSpan:
        """Read a range of the server's. Raises TypeError when it is none."""
        start, end = range_ends(value)
        return TextSpan(self.from_server(start, encoding), self.from_server(end, encoding))


def to_units(line: str, character: int, encoding: Encoding) -> int:
    """Count the units before a column of a line."""
    before = line[:character]
    match encoding:
        case Encoding.UTF32:
            return len(before)
        case Encoding.UTF8:
            return len(before.encode("utf-8", errors="surrogatepass"))
        case Encoding.UTF16:
            return len(before) + sum(one > "\uffff" for one in before)


def from_units(line: str, units: int, encoding: Encoding) -> int:
    """Return the column that so many units lead to; in the middle of a character, its start."""
    if encoding is Encoding.UTF32 or line.isascii():
        return min(units, len(line))
    seen = 0
    for column, one in enumerate(line):
        seen += to_units(one, 1, encoding)
        if seen > units:
            return column
    return len(line)


def position_numbers(position: JsonValue) -> tuple[int, int]:
    """Read line and column out of a position; negative ones count as 0. Raises TypeError."""
    if isinstance(position, dict):
        line, column = position.get("line"), position.get("character")
        if type(line) is int and type(column) is int:
            return max(line, 0), max(column, 0)
    raise TypeError(f"not a position: {str(position)[:100]}")


def range_ends(value: JsonValue) -> tuple[JsonValue, JsonValue]:
    """Take start and end out of a range. Raises TypeError when it is none."""
    if isinstance(value, dict) and "start" in value and "end" in value:
        return value["start"], value["end"]
    raise TypeError(f"not a range: {str(value)[:100]}")


def negotiated(capabilities: JsonObject) -> Encoding:
    """Return which encoding a server chose; one that we did not offer counts as the default."""
    chosen = capabilities.get("positionEncoding")
    try:
        return Encoding(cast("str", chosen))
    except ValueError:
        return Encoding.UTF16


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
