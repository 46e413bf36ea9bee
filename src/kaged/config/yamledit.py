"""`YamlEdit`: change single values of a YAML text and leave every other byte as it was.

Values are written in flow style (`[a, b]`, `{a: 1}`). Each change is checked by reading the new
text: if it does not say exactly what was meant, the edit is refused and the text stays.
"""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Sequence
from typing import Any, Final, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.config.nodes import to_json
from kaged.config.problems import ConfigFileInvalid, KeyPath, format_key_path
from kaged.config.yamldoc import parse_yaml, resolve_plain
from kaged.config.yamlspans import YamlSpan, yaml_spans

_PLAIN: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*")
# What YAML would fold, refuse or take for a line end inside quotes must be escaped.
_UNSAFE: Final = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")
_DASH: Final = re.compile(r"(\s*)-[ \t]+")
# Plain text here, but true or false for programs that read YAML 1.1.
_OLD_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off"})
_SURROGATE: Final = re.compile("[\ud800-\udfff]")


class EditRefused(KagedError):
    """The change cannot be made in this text without touching more than it; nothing changed."""

    code = "config_edit_refused"


class YamlEdit:
    """The text of a YAML document, open for changes by key path."""

    def __init__(self, text: str, file: str) -> None:
        """Take a text that can be read. Raises ConfigFileInvalid when it cannot."""
        self._file = file
        self._text = text
        self._data = self._read(text)

    @property
    def text(self) -> str:
        """The text with all changes so far."""
        return self._text

    def get(self, path: Sequence[str | int]) -> JsonValue:
        """Return the value at a path. Raises KeyError when there is none."""
        return copy.deepcopy(_find(self._data, tuple(path)))

    def set(self, path: Sequence[str | int], value: JsonValue) -> None:
        """Set the value at a path; maps that are missing on the way are made.

        Raises:
            EditRefused: the path leads through a list end, an alias or a value that is no map.
        """
        keys = tuple(path)
        if not keys:
            raise EditRefused("the whole document cannot be replaced", fix="name a key")
        spans = yaml_spans(self._text)
        known = 0
        while known < len(keys) and keys[: known + 1] in spans:
            known += 1
        for step in keys[known:]:
            if not isinstance(step, str):
                raise EditRefused(f"{format_key_path(keys)} is beyond the end of the list")
            # Missing maps on the way are written as part of the value.
        target = keys[: known + 1] if known < len(keys) else keys
        nested: JsonValue = value
        for step in reversed(keys[len(target) :]):
            wrapped: JsonObject = {cast("str", step): nested}
            nested = wrapped
        expected = copy.deepcopy(self._data)
        if known == len(keys):
            new = _replaced(self._text, spans[keys], nested, keys)
        else:
            new = _inserted(self._text, spans, target, nested)
        _assign(expected, target, nested)
        self._accept(new, expected, keys)

    def append(self, path: Sequence[str | int], value: JsonValue) -> None:
        """Add an item to the end of a list; a list that is missing is made.

        Raises:
            EditRefused: there is something else than a list, or it cannot be added to.
        """
        keys = tuple(path)
        span = yaml_spans(self._text).get(keys)
        known = None if span is None else _find(self._data, keys)
        if not known:
            if known not in (None, []):
                raise EditRefused(f"{format_key_path(keys)} is not a list")
            self.set(keys, [value])
            return
        assert span is not None  # it holds something
        if span.kind != "list":
            raise EditRefused(f"{format_key_path(keys)} is not a list that can be added to")
        expected = copy.deepcopy(self._data)
        _find(expected, keys).append(copy.deepcopy(value))
        self._accept(_appended(self._text, span, value, keys), expected, keys)

    def delete(self, path: Sequence[str | int]) -> None:
        """Remove a key with its value; a key that is not there is fine.

        Raises:
            EditRefused: the path names an item of a list.
        """
        keys = tuple(path)
        spans = yaml_spans(self._text)
        if keys not in spans:
            return
        if not keys or not isinstance(keys[-1], str):
            raise EditRefused("only keys of maps can be removed", fix="set the whole list instead")
        expected = copy.deepcopy(self._data)
        del _find(expected, keys[:-1])[keys[-1]]
        self._accept(_removed(self._text, spans, keys), expected, keys)

    def _accept(self, text: str, expected: JsonValue, path: KeyPath) -> None:
        try:
            meant = self._read(text) == expected
        except ConfigFileInvalid:
            meant = False
        if not meant:
            raise EditRefused(
                f"{format_key_path(path)} cannot be changed in this file by a program",
                fix=f"edit {self._file} by hand",
            )
        self._text, self._data = text, expected

    def _read(self, text: str) -> Any:
        parsed = parse_yaml(text, self._file)
        if parsed.node is None or parsed.problems:
            raise ConfigFileInvalid(parsed.problems)
        return to_json(parsed.node)


def render_yaml(value: JsonValue) -> str:
    """Write a value in flow style, in one line. Raises EditRefused for lone surrogates."""
    if isinstance(value, str):
        return _render_text(value)
    if isinstance(value, list):
        return "[" + ", ".join(map(render_yaml, value)) + "]"
    if isinstance(value, dict):
        if not value:
            return "{}"
        pairs = (f"{_render_text(name)}: {render_yaml(inner)}" for name, inner in value.items())
        return "{ " + ", ".join(pairs) + " }"
    return json.dumps(value, allow_nan=False)


def _render_text(text: str) -> str:
    if _PLAIN.fullmatch(text) and resolve_plain(text) == text and text.lower() not in _OLD_WORDS:
        return text
    if _SURROGATE.search(text):
        raise EditRefused("the text holds half a character (a lone surrogate)")
    quoted = json.dumps(text, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", quoted)


def _replaced(text: str, span: YamlSpan, value: JsonValue, path: KeyPath) -> str:
    start, end = span.start, span.end
    rendered = render_yaml(value)
    if span.kind in {"map", "list"} and not span.flow:
        if isinstance(path[-1], int):
            raise EditRefused(
                f"{format_key_path(path)} spreads over several lines of a list",
                fix="set the whole list instead",
            )
        # From behind the colon: the block begins on the next line or behind an anchor.
        start = text.index(":", span.key_end) + 1
        rendered = f" {rendered}"
    elif start == end:
        rendered = f" {rendered}"
    if text[start:end].endswith("\n"):
        rendered += "\n"
    return text[:start] + rendered + text[end:]


def _inserted(text: str, spans: dict[KeyPath, YamlSpan], target: KeyPath, value: JsonValue) -> str:
    parent = spans[target[:-1]]
    pair = f"{_render_text(cast('str', target[-1]))}: {render_yaml(value)}"
    if parent.kind == "alias":
        raise EditRefused(
            f"{format_key_path(target[:-1])} is an alias", fix="write the map out first"
        )
    if parent.kind == "scalar":
        if text[parent.start : parent.end].strip() not in {"", "~", "null"}:
            raise EditRefused(f"{format_key_path(target[:-1])} is not a map")
        blank = " " if parent.start == parent.end else ""
        return f"{text[: parent.start]}{blank}{{ {pair} }}{text[parent.end :]}"
    if parent.flow:
        if not parent.children:
            return f"{text[: parent.start]}{{ {pair} }}{text[parent.end :]}"
        last = spans[parent.children[-1]].end
        return f"{text[:last]}, {pair}{text[last:]}"
    end = _line_end(text, parent.end)
    gap = "" if text[end - 1 : end] == "\n" else _newline(text)
    return f"{text[:end]}{gap}{' ' * parent.column}{pair}{_newline(text)}{text[end:]}"


def _appended(text: str, span: YamlSpan, value: JsonValue, path: KeyPath) -> str:
    last = yaml_spans(text)[span.children[-1]]
    rendered = render_yaml(value)
    if span.flow:
        return f"{text[: last.end]}, {rendered}{text[last.end :]}"
    line_start = text.rfind("\n", 0, last.start) + 1
    dash = _DASH.fullmatch(text[line_start : last.start])
    if dash is None:
        raise EditRefused(
            f"{format_key_path(path)} cannot be added to by a program", fix="add to it by hand"
        )
    end = _line_end(text, last.end)
    gap = "" if text[end - 1 : end] == "\n" else _newline(text)
    return f"{text[:end]}{gap}{dash[1]}- {rendered}{_newline(text)}{text[end:]}"


def _line_end(text: str, end: int) -> int:
    """Return where the line of a value ends that ends here; behind its comment."""
    if text[end - 1 : end] == "\n":
        return end
    found = text.find("\n", end)
    return len(text) if found < 0 else found + 1


def _removed(text: str, spans: dict[KeyPath, YamlSpan], path: KeyPath) -> str:
    parent, span = spans[path[:-1]], spans[path]
    at = parent.children.index(path)
    if len(parent.children) == 1:
        if path[:-1]:
            return _replaced(text, parent, {}, path[:-1])
        return f"{text[: span.key_start]}{{}}{text[span.end :]}"
    following = parent.children[at + 1 : at + 2]
    if parent.flow:
        if following:
            return text[: span.key_start] + text[spans[following[0]].key_start :]
        return text[: spans[parent.children[at - 1]].end] + text[span.end :]
    line_start = text.rfind("\n", 0, span.key_start) + 1
    if text[line_start : span.key_start].strip():
        # The first key of a map in a list stands behind the dash.
        if not following:
            raise EditRefused(f"{format_key_path(path)} stands where it cannot be cut out")
        return text[: span.key_start] + text[spans[following[0]].key_start :]
    end = _line_end(text, span.end)
    return text[:line_start] + text[end:]


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _find(data: Any, path: KeyPath) -> Any:
    for step in path:
        try:
            data = data[step]
        except (IndexError, TypeError):
            raise KeyError(step) from None
    return data


def _assign(data: Any, path: KeyPath, value: JsonValue) -> None:
    parent = _find(data, path[:-1])
    if parent is None:
        # `key:` without a value counts as an empty map here.
        _assign(data, path[:-1], {cast("str", path[-1]): value})
    else:
        parent[path[-1]] = copy.deepcopy(value)
