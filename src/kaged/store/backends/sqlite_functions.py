"""SQLite's text functions that can take hours in one step, made to end soon.

`instr`, `replace` and `trim` with a set of characters compare everything with everything, and
`printf` counts to any width it is given, inside one step that nothing can interrupt. Connections
that run plugins' statements have these instead; the results are the same.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable

_Value = str | bytes | int | float | None
_Written = str | bytes | int | float  # a value that has a text
_SPEC = re.compile(r"%[-+ 0#,!]*(\d*)(?:\.(\d*))?")
_NUMBER = re.compile(r"\s*[-+]?(\d+)")


def use_linear_functions(conn: sqlite3.Connection, limit_bytes: int) -> Callable[[], None]:
    """Put the functions in place of the built-in ones; return what ends them with the connection.

    `limit_bytes` is the connection's limit for one value: results are not built far beyond it.
    """
    made = _Functions(limit_bytes)
    functions = {
        ("instr", 2): made.instr,
        ("replace", 3): made.replace,
        ("trim", 2): made.trim,
        ("ltrim", 2): made.ltrim,
        ("rtrim", 2): made.rtrim,
        ("printf", -1): made.printf,
        ("format", -1): made.printf,
    }
    for (name, arguments), function in functions.items():
        conn.create_function(name, arguments, function, deterministic=True)
    return made.close


class _Functions:
    """The functions, with an empty database of their own for what SQLite does best itself."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._conn = sqlite3.connect(":memory:", check_same_thread=False)
        self._conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, limit_bytes)
        # A precision can cut a character in two, which is no reason to fail a statement.
        self._conn.text_factory = _lenient

    def close(self) -> None:
        self._conn.close()

    def instr(self, haystack: _Value, needle: _Value) -> int | None:
        if haystack is None or needle is None:
            return None
        if isinstance(haystack, bytes) and isinstance(needle, bytes):
            return haystack.find(needle) + 1
        return self._text(haystack).find(self._text(needle)) + 1

    def replace(self, text: _Value, old: _Value, new: _Value) -> _Value:
        if text is None or old is None:
            return None
        wanted = self._text(old)
        if not wanted:
            return self._text(text) if isinstance(text, bytes) else text
        if new is None:
            return None
        found, instead = self._text(text), self._text(new)
        grown = len(found) + found.count(wanted) * (len(instead) - len(wanted))
        return self._too_big() if grown > self._limit_bytes else found.replace(wanted, instead)

    def trim(self, text: _Value, characters: _Value) -> _Value:
        return self.ltrim(self.rtrim(text, characters), characters)

    def ltrim(self, text: _Value, characters: _Value) -> _Value:
        if text is None or characters is None:
            return None
        found, unwanted = self._text(text), frozenset(self._text(characters))
        start = 0
        while start < len(found) and found[start] in unwanted:
            start += 1
        return found[start:]

    def rtrim(self, text: _Value, characters: _Value) -> _Value:
        if text is None or characters is None:
            return None
        found, unwanted = self._text(text), frozenset(self._text(characters))
        end = len(found)
        while end > 0 and found[end - 1] in unwanted:
            end -= 1
        return found[:end]

    def printf(self, *values: _Value) -> _Value:
        if values and values[0] is not None and self._width(values) > self._limit_bytes:
            return self._too_big()
        marks = ", ".join("?" * len(values))
        try:
            # Only question marks are put together here.
            (written,) = self._conn.execute(f"SELECT printf({marks})", values).fetchone()
        except sqlite3.DataError:
            return self._too_big()
        return written

    def _width(self, values: tuple[_Value, ...]) -> int:
        """Return an upper bound of all widths and precisions that a format asks for."""
        pattern = "" if values[0] is None else self._text(values[0])
        specs = _SPEC.findall(pattern)
        widest = sum(int(digits[:18]) for spec in specs for digits in spec if digits)
        if "*" in pattern:
            # Which value a star takes depends on all before it; the largest one will do.
            largest = max((self._whole(value) for value in values[1:]), default=0)
            widest += len(specs) * 2 * largest
        return widest

    def _whole(self, value: _Value) -> int:
        if isinstance(value, int):
            return abs(value)
        if isinstance(value, float):
            return abs(int(value)) if math.isfinite(value) else 2**63
        found = None if value is None else _NUMBER.match(self._text(value))
        return int(found.group(1)[:18]) if found else 0

    def _text(self, value: _Written) -> str:
        """Write a value as SQLite writes it when text is needed."""
        if isinstance(value, str):
            return value
        if isinstance(value, bytes):
            return value.decode("utf-8", "replace")
        if isinstance(value, int):
            return str(value)
        (written,) = self._conn.execute("SELECT CAST(? AS TEXT)", (value,)).fetchone()
        return str(written)

    def _too_big(self) -> str:
        return "x" * (self._limit_bytes + 1)  # which SQLite refuses as too big


def _lenient(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")
