"""`TomlEdit`: change single keys of a TOML text; comments, order and everything else stay.

Each change is checked by reading the new text: if it does not say exactly what was meant, the edit
is refused and the text stays.
"""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator, Sequence
from typing import Any

from kaged.base import JsonValue
from kaged.config.problems import ConfigFileInvalid, KeyPath, format_key_path
from kaged.config.tomldoc import parse_toml
from kaged.config.tomlsections import without_section
from kaged.config.yamledit import EditRefused


class TomlEdit:
    """The text of a TOML document, open for changes by key path."""

    def __init__(self, text: str, file: str) -> None:
        """Take a text that can be read. Raises ConfigFileInvalid when it cannot."""
        self._file = file
        parsed = parse_toml(text, file)
        if parsed.node is None or parsed.problems:
            raise ConfigFileInvalid(parsed.problems)
        self._text = text
        self._data: Any = tomllib.loads(text)

    @property
    def text(self) -> str:
        """The text with all changes so far."""
        return self._text

    def get(self, path: Sequence[str]) -> JsonValue:
        """Return the value at a path. Raises KeyError when there is none."""
        value = self._data
        for step in path:
            if not isinstance(value, dict):
                raise KeyError(step)
            value = value[step]
        return copy.deepcopy(value)

    def set(self, path: Sequence[str], value: JsonValue) -> None:
        """Set the value at a path; tables that are missing on the way are made.

        Raises:
            EditRefused: the path leads through something that is no table, or the value is or
                holds null, which TOML does not have.
        """
        import tomlkit  # noqa: PLC0415 - slow to import, needed only for edits

        if not path or _holds_null(value):
            raise EditRefused("TOML cannot hold this value", fix="remove the key instead")
        document: Any = tomlkit.parse(self._text)
        expected = copy.deepcopy(self._data)
        table, plain = document, expected
        for depth, step in enumerate(path[:-1]):
            if step not in table:
                # A table that holds only tables gets no header of its own.
                table[step] = tomlkit.table(is_super_table=depth < len(path) - 2)
                plain[step] = {}
            table, plain = table[step], plain[step]
            if not isinstance(plain, dict):
                raise EditRefused(f"{format_key_path(path)}: {step} is not a table")
        table[path[-1]] = value
        plain[path[-1]] = copy.deepcopy(value)
        self._accept(tomlkit.dumps(document), expected, tuple(path))

    def delete(self, path: Sequence[str]) -> None:
        """Remove a key with its value; a key that is not there is fine."""
        import tomlkit  # noqa: PLC0415 - slow to import, needed only for edits

        try:
            self.get(path)
        except KeyError:
            return
        document: Any = tomlkit.parse(self._text)
        expected = copy.deepcopy(self._data)
        table, plain = document, expected
        for step in path[:-1]:
            table, plain = table[step], plain[step]
        del table[path[-1]]
        del plain[path[-1]]
        self._accept(tomlkit.dumps(document), expected, tuple(path))

    def cut(self, path: Sequence[str]) -> None:
        """Remove a table with all its parts; what is written around it stays, comments included.

        Tables above it that hold nothing else go as well. A table that has no header of its own is
        deleted like any key.
        """
        try:
            self.get(path)
        except KeyError:
            return
        text = without_section(self._text, tuple(path))
        try:
            found = tomllib.loads(text)
        except tomllib.TOMLDecodeError:
            found = None
        for expected in _without(self._data, path):
            if found == expected:
                self._text, self._data = text, expected
                return
        self.delete(path)

    def _accept(self, text: str, expected: Any, path: KeyPath) -> None:
        try:
            meant = tomllib.loads(text) == expected
        except tomllib.TOMLDecodeError:
            meant = False
        if not meant:
            raise EditRefused(
                f"{format_key_path(path)} cannot be changed in this file by a program",
                fix=f"edit {self._file} by hand",
            )
        self._text, self._data = text, expected


def _without(data: Any, path: Sequence[str]) -> Iterator[Any]:
    """Yield the data without what is at a path, then without each table that is empty by that."""
    expected = copy.deepcopy(data)
    for depth in range(len(path) - 1, -1, -1):
        table = expected
        for step in path[:depth]:
            table = table[step]
        del table[path[depth]]
        yield copy.deepcopy(expected)
        if table:
            return


def _holds_null(value: JsonValue) -> bool:
    if isinstance(value, list):
        return any(map(_holds_null, value))
    if isinstance(value, dict):
        return any(map(_holds_null, value.values()))
    return value is None
