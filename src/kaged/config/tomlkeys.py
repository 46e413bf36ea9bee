"""Where each key and each list item of a valid TOML text stands.

`tomllib` drops all places and `tomlkit` keeps no line numbers, so this walks the text once
more. It expects text that `tomllib` has accepted and does not check it again.
"""

from __future__ import annotations

import tomllib
from bisect import bisect_right
from typing import Final

from kaged.config.problems import KeyPath, Mark

_BLANK: Final = " \t"
_VOID: Final = " \t\r\n"
_VALUE_END: Final = ",]}\r\n#"


def locate_keys(text: str) -> dict[KeyPath, Mark]:
    """Map the path of every key, table and list item to the place where it is first written."""
    return _Locator(text).walk()


class _Locator:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._line_starts = [0]
        for index, char in enumerate(text):
            if char == "\n":
                self._line_starts.append(index + 1)
        self._marks: dict[KeyPath, Mark] = {}
        self._table_counts: dict[KeyPath, int] = {}

    def walk(self) -> dict[KeyPath, Mark]:
        base: KeyPath = ()
        self._skip_void()
        while self._at < len(self._text):
            if self._text[self._at] == "[":
                base = self._header()
            else:
                self._pair(base)
            self._skip_void()
        return self._marks

    def _header(self) -> KeyPath:
        is_array = self._text.startswith("[[", self._at)
        self._at += 2 if is_array else 1
        keys = self._key()
        path: KeyPath = ()
        for position, (name, start) in enumerate(keys):
            path = (*path, name)
            self._note(path, start)
            if is_array and position == len(keys) - 1:
                count = self._table_counts.get(path, 0)
                self._table_counts[path] = count + 1
                path = (*path, count)
                self._note(path, start)
            elif path in self._table_counts:
                # A table below an array of tables belongs to its last element.
                path = (*path, self._table_counts[path] - 1)
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        return path

    def _pair(self, base: KeyPath) -> None:
        path = base
        for name, start in self._key():
            path = (*path, name)
            self._note(path, start)
        self._at = self._text.index("=", self._at) + 1
        self._skip_blank()
        self._value(path)

    def _key(self) -> list[tuple[str, int]]:
        """Read a dotted key; leave the cursor behind it."""
        parts: list[tuple[str, int]] = []
        while True:
            self._skip_blank()
            start = self._at
            parts.append((self._simple_key(), start))
            self._skip_blank()
            if self._peek() != ".":
                return parts
            self._at += 1

    def _simple_key(self) -> str:
        start = self._at
        quote = self._peek()
        if quote in {'"', "'"}:
            self._string()
            raw = self._text[start : self._at]
            if "\\" not in raw:
                return raw[1:-1]
            return str(tomllib.loads(f"k = {raw}")["k"])
        while self._at < len(self._text) and self._text[self._at] not in " \t.=]":
            self._at += 1
        return self._text[start : self._at]

    def _value(self, path: KeyPath) -> None:
        char = self._peek()
        if char in {'"', "'"}:
            self._string()
        elif char == "[":
            self._array(path)
        elif char == "{":
            self._inline_table(path)
        else:
            while self._at < len(self._text) and self._text[self._at] not in _VALUE_END:
                self._at += 1

    def _array(self, path: KeyPath) -> None:
        self._at += 1
        index = 0
        self._skip_void()
        while self._peek() != "]":
            item = (*path, index)
            self._note(item, self._at)
            self._value(item)
            index += 1
            self._skip_void()
            if self._peek() == ",":
                self._at += 1
                self._skip_void()
        self._at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self._at += 1
        self._skip_void()
        while self._peek() != "}":
            self._pair(path)
            self._skip_void()
            if self._peek() == ",":
                self._at += 1
                self._skip_void()
        self._at += 1

    def _string(self) -> None:
        quote = self._text[self._at]
        if not self._text.startswith(quote * 3, self._at):
            self._at = self._closing(self._at + 1, quote) + 1
            return
        end = self._closing(self._at + 3, quote * 3) + 3
        # Up to two quotes may belong to the text right before the closing three.
        for _ in range(2):
            if self._text.startswith(quote, end):
                end += 1
        self._at = end

    def _closing(self, at: int, ending: str) -> int:
        escapes = ending[0] == '"'
        while not self._text.startswith(ending, at):
            at += 2 if escapes and self._text[at] == "\\" else 1
        return at

    def _skip_blank(self) -> None:
        while self._at < len(self._text) and self._text[self._at] in _BLANK:
            self._at += 1

    def _skip_void(self) -> None:
        while self._at < len(self._text):
            if self._text[self._at] in _VOID:
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _peek(self) -> str:
        return self._text[self._at]

    def _note(self, path: KeyPath, index: int) -> None:
        if path not in self._marks:
            line = bisect_right(self._line_starts, index)
            self._marks[path] = Mark(line, index - self._line_starts[line - 1] + 1)
