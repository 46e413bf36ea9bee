"""`LoadedScripts`: the files that an engine has loaded; `SourceMap`: where they were written."""

from __future__ import annotations

import base64
import binascii
from bisect import bisect_right
from typing import Final, Self

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.dialects import Dialect
from kaged.wire.fastjson import decode_json
from kaged.wire.strictjson import NotJson

MAX_SCRIPTS: Final = 50_000
MAP_LIMIT_CHARS: Final = 16 * 1024 * 1024
_DIGITS: Final = {
    letter: value
    for value, letter in enumerate(
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    )
}
_MORE: Final = 32
_WIDEST: Final = 60
_FIELDS: Final = 4
"""Generated column, source, line, column; a fifth, the name, is of no use here."""


@dataclass(frozen=True, slots=True)
class SourceMap:
    """A map of one source. Lines and columns count from 0.

    `forward` holds per line of the running code its (column, line, column) in order; `backward`
    the lines that have code, in order, each with where that code begins.
    """

    forward: tuple[tuple[tuple[int, int, int], ...], ...]
    lines: tuple[int, ...]
    places: tuple[tuple[int, int], ...]

    @classmethod
    def of_url(cls, url: str) -> Self | None:
        """Read a map that stands in its own `data:` address; None when it cannot be read."""
        head, _, data = url.partition(",")
        if not head.startswith("data:application/json") or len(url) > MAP_LIMIT_CHARS:
            return None
        try:
            text = base64.b64decode(data, validate=True) if ";base64" in head else data.encode()
            found = decode_json(text)
        except (binascii.Error, ValueError, NotJson):
            return None
        if not isinstance(found, dict):
            return None
        sources, mappings = found.get("sources"), found.get("mappings")
        if not isinstance(sources, list) or len(sources) != 1 or not isinstance(mappings, str):
            return None
        return cls.of_mappings(mappings)

    @classmethod
    def of_mappings(cls, mappings: str) -> Self | None:
        """Decode the `mappings` of a map; None when they are damaged."""
        forward: list[tuple[tuple[int, int, int], ...]] = []
        first: dict[int, tuple[int, int]] = {}
        line = column = 0
        for number, written in enumerate(mappings.split(";")):
            at = 0
            found: list[tuple[int, int, int]] = []
            for segment in filter(None, written.split(",")):
                fields = _decode(segment)
                if not fields:
                    return None
                at += fields[0]
                if len(fields) >= _FIELDS:
                    line, column = line + fields[2], column + fields[3]
                    found.append((at, line, column))
                    first.setdefault(line, (number, at))
            forward.append(tuple(sorted(found)))
        lines = tuple(sorted(first))
        return cls(tuple(forward), lines, tuple(first[one] for one in lines))

    def written(self, line: int, column: int) -> tuple[int, int]:
        """Return where a place of the running code was written."""
        known = self.forward[line] if 0 <= line < len(self.forward) else ()
        if not known:
            return line, column
        at = max(bisect_right(known, column, key=lambda one: one[0]) - 1, 0)
        return known[at][1], known[at][2]

    def running(self, line: int) -> tuple[int, int] | None:
        """Return where the code of a written line runs: of it, or of the next line that has any."""
        at = bisect_right(self.lines, line - 1)
        return self.places[at] if at < len(self.places) else None


@dataclass(frozen=True, slots=True)
class LoadedScript:
    """A loaded file: its path (None for code without one), the engine's name, its map."""

    path: str | None
    url: str
    map: SourceMap | None


class LoadedScripts:
    """What an engine has loaded, by its own numbers."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: dict[str, LoadedScript] = {}

    def add(self, params: JsonObject) -> str | None:
        """Take a `Debugger.scriptParsed`; returns the file's path if it has one."""
        url, at = params.get("url"), params.get("sourceMapURL")
        if not isinstance(url, str) or not url or len(self._known) >= MAX_SCRIPTS:
            return None
        path = self._dialect.path(url)
        found = SourceMap.of_url(at) if path is not None and isinstance(at, str) and at else None
        self._known[str(params.get("scriptId"))] = LoadedScript(path, url, found)
        return path

    def find(self, location: JsonObject) -> LoadedScript | None:
        """Return the file that a place is in."""
        return self._known.get(str(location.get("scriptId")))

    def of_path(self, path: str) -> LoadedScript | None:
        """Return the loaded file of a path."""
        return next((one for one in self._known.values() if one.path == path), None)

    def paths(self) -> list[str]:
        """Return the paths of all loaded files, in order."""
        return sorted({one.path for one in self._known.values() if one.path is not None})

    def written(self, location: JsonObject) -> tuple[int, int]:
        """Return the line and column, from 0, at which a place of the running code was written."""
        line, column = location.get("lineNumber"), location.get("columnNumber")
        line = line if type(line) is int else 0
        column = column if type(column) is int else 0
        script = self.find(location)
        if script is None or script.map is None:
            return line, column
        return script.map.written(line, column)


def _decode(segment: str) -> list[int]:
    """Decode base64 numbers of variable length; empty when damaged."""
    numbers: list[int] = []
    value = shift = 0
    for letter in segment:
        digit = _DIGITS.get(letter)
        if digit is None or shift > _WIDEST:
            return []
        value |= (digit & (_MORE - 1)) << shift
        if digit & _MORE:
            shift += 5
            continue
        numbers.append(-(value >> 1) if value & 1 else value >> 1)
        value = shift = 0
    return numbers
