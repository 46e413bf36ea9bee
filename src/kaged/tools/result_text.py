"""`text_of`: a tool's result as a model reads it: compact text, what is short first. Pure.

Programs get the result as it is. A model pays for every quote and every escaped newline, and reads
code worse through them; so a long text stands below the short values, as it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final, NamedTuple

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass

MAX_INLINE_CHARS: Final = 200
"""A longer text, or one of several lines, stands by itself below the short values."""

MAX_DEPTH: Final = 3
"""So many objects within each other are written line by line."""

_encode = json.JSONEncoder(ensure_ascii=False, separators=(", ", ": ")).encode


class PagedText(NamedTuple):
    """A result whose lines can be read again: `head` first, then the lines from `first` on.

    `path` is what `file.read` is asked for with an `offset`.
    """

    head: str
    text: str
    path: str
    first: int


@dataclass(frozen=True, slots=True)
class ResultView:
    """How the results of a tool enter a window.

    `is_read` gives them the larger budget of tools that read what was asked for. `write` makes text
    of a result. `paged` says where its lines can be read again; None for one that must be kept.
    """

    is_read: bool = False
    write: Callable[[JsonObject], str] | None = None
    paged: Callable[[JsonObject], PagedText | None] | None = None


PLAIN_VIEW: Final = ResultView()


def text_of(value: JsonValue) -> str:
    """Write a result as text: short values one per line, then lists, then long texts as they are.

    The same value always gives the same text. What lies deep stays JSON.
    """
    return _written(value, MAX_DEPTH)


def _written(value: JsonValue, depth: int) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, dict) or not value:
        return "\n".join(map(_item, value)) if isinstance(value, list) and value else _flat(value)
    heads: list[str] = []
    lists: list[str] = []
    texts: list[str] = []
    for name, one in value.items():
        if isinstance(one, str) and not _is_short(one):
            texts.append(f"{name}:\n{one}")
        elif isinstance(one, list) and not _is_short_list(one):
            lists.append("\n".join((f"{name}:", *map(_item, one))))
        elif isinstance(one, dict) and depth and len(_flat(one)) > MAX_INLINE_CHARS:
            lists.append(f"{name}:\n{_indented(_written(one, depth - 1))}")
        else:
            heads.append(f"{name}: {_flat(one)}")
    return "\n".join((*heads, *lists, *texts))


def _item(value: JsonValue) -> str:
    """Write one of a list: a text of one line as it is, an object on one line."""
    if isinstance(value, str):
        return f"- {value}" if "\n" not in value else f"- {_encode(value)}"
    if isinstance(value, dict) and value:
        return "- " + ", ".join(f"{name}: {_flat(one)}" for name, one in value.items())
    return f"- {_flat(value)}"


def _flat(value: JsonValue) -> str:
    """Write a value on one line. A text that could be taken for something else is quoted."""
    if isinstance(value, str):
        plain = value and value == value.strip() and "\n" not in value and ", " not in value
        return value if plain else _encode(value)
    return _encode(value)


def _is_short(text: str) -> bool:
    return len(text) <= MAX_INLINE_CHARS and "\n" not in text


def _is_short_list(listed: list[JsonValue]) -> bool:
    if any(isinstance(one, (dict, list)) for one in listed):
        return False
    return len(listed) <= MAX_INLINE_CHARS and len(_encode(listed)) <= MAX_INLINE_CHARS


def _indented(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.split("\n"))
