"""TOML text to a `Node`: `tomllib` reads the data, `tomlkeys` finds where each key stands."""

from __future__ import annotations

import math
import re
import tomllib
from collections.abc import Callable
from datetime import date, datetime, time
from pathlib import Path
from typing import Any, Final, TypeVar

from kaged.config.files import Privacy, is_missing, read_text
from kaged.config.nodes import MapEntry, Node, Odd, Parsed, Scalar
from kaged.config.problems import (
    ConfigFileInvalid,
    KeyPath,
    Mark,
    Problem,
    format_key_path,
)
from kaged.config.reading import DocumentPosition, Loaded, NoValue, Reading
from kaged.config.tomlkeys import locate_keys

T = TypeVar("T")

MAX_TOML_DEPTH: Final = 64
"""How deep tables and lists may be nested."""

_INT64_MAX: Final = 2**63 - 1
_PLACE = re.compile(r"\s*\(at (?:line (\d+), column (\d+)|end of document)\)$")


def parse_toml(text: str, file: str) -> Parsed:
    """Read TOML text, noting every problem that could be found; a syntax error ends the search."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        return Parsed(None, (_syntax_problem(text, file, str(error)),))
    except RecursionError:
        return Parsed(None, (_problem(file, None, (), "too_deep", _too_deep()),))
    except ValueError:
        # int() refuses numbers with thousands of digits on its own.
        message = "holds a number that is too large"
        return Parsed(None, (_problem(file, None, (), "bad_number", message),))
    builder = _Builder(file)
    if _depth_exceeds(data, MAX_TOML_DEPTH):
        return Parsed(None, (_problem(file, None, (), "too_deep", _too_deep()),))
    builder.marks = locate_keys(text)
    return Parsed(builder.build(data, ()), tuple(builder.problems))


def load_toml(
    path: Path,
    reading: Reading,
    read: Callable[[Node, DocumentPosition], T | NoValue],
    *,
    default: Callable[[], T],
    privacy: Privacy,
) -> Loaded[T]:
    """Read a file of the operator; an absent file gives the default.

    Raises:
        ConfigFileInvalid: with every problem, or because others may touch the file.
    """
    try:
        found = read_text(path, privacy=privacy)
    except ConfigFileInvalid as error:
        if is_missing(error):
            return Loaded(default())
        raise
    reading.add(found.warnings)
    return reading.read(parse_toml(found.text, str(path)), read)


class _Builder:
    def __init__(self, file: str) -> None:
        self._file = file
        self.marks: dict[KeyPath, Mark] = {}
        self.problems: list[Problem] = []

    def build(self, data: Any, path: KeyPath) -> Node:
        mark = self.marks.get(path, Mark(1, 1))
        if isinstance(data, dict):
            pairs: dict[str, MapEntry] = {}
            for name, inner in data.items():
                inner_path = (*path, name)
                node = self.build(inner, inner_path)
                pairs[name] = MapEntry(self.marks.get(inner_path, mark), node)
            return Node(pairs, mark)
        if isinstance(data, list):
            items = (self.build(inner, (*path, index)) for index, inner in enumerate(data))
            return Node(tuple(items), mark)
        if isinstance(data, (date, datetime, time)):
            return Node(Odd("a date or time", str(data)), mark)
        return Node(self._scalar(data, path, mark), mark)

    def _scalar(self, data: Any, path: KeyPath, mark: Mark) -> Scalar | Odd:
        if isinstance(data, float) and not math.isfinite(data):
            message = "infinity and not-a-number are not accepted"
        elif isinstance(data, int) and abs(data) > _INT64_MAX:
            message = "the number is too large"
        else:
            return data
        self.problems.append(_problem(self._file, mark, path, "bad_number", message))
        return Odd("a number that cannot be used", str(data), reported=True)


def _syntax_problem(text: str, file: str, message: str) -> Problem:
    what = message
    mark = Mark(text.count("\n") + 1, 1)
    found = _PLACE.search(message)
    if found is not None:
        what = message[: found.start()]
        if found[1] is not None:
            mark = Mark(int(found[1]), int(found[2]))
    fix = ""
    if what.startswith("Cannot overwrite") or "declare" in what:
        fix = "each key and each [table] may be written once"
    return _problem(file, mark, (), "toml_syntax", f"is not valid TOML: {what}", fix)


def _problem(
    file: str, mark: Mark | None, path: KeyPath, code: str, message: str, fix: str = ""
) -> Problem:
    return Problem.at(file, mark, format_key_path(path), message, fix, code)


def _too_deep() -> str:
    return f"is nested deeper than {MAX_TOML_DEPTH} levels"


def _depth_exceeds(data: Any, limit: int) -> bool:
    layer: list[Any] = [data]
    for _ in range(limit):
        deeper: list[Any] = []
        for value in layer:
            if isinstance(value, dict):
                deeper.extend(value.values())
            elif isinstance(value, list):
                deeper.extend(value)
        if not deeper:
            return False
        layer = deeper
    return True
