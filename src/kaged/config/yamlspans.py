"""Where the pieces of a YAML text begin and end, for edits that leave every other byte alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kaged.base.lazy_dataclass import dataclass
from kaged.config.problems import KeyPath


@dataclass(frozen=True, slots=True)
class YamlSpan:
    """One value of a document: where it and its key stand, as indexes into the text.

    `end` of a block collection is the end of its last value, so comments behind it stay outside.
    `column` is the column of a block map's keys. `kind` is `scalar`, `map`, `list` or `alias`.
    """

    start: int
    end: int
    key_start: int
    key_end: int
    kind: str
    flow: bool
    column: int
    children: tuple[KeyPath, ...]


def yaml_spans(text: str) -> dict[KeyPath, YamlSpan]:
    """Map the path of every value to its span. The text must have been read without problems."""
    from ruamel.yaml import YAML  # noqa: PLC0415 - slow to import, needed only for edits

    events = iter(YAML(typ="safe", pure=True, plug_ins=[]).parse(text))
    spans: dict[KeyPath, YamlSpan] = {}
    next(events)
    if type(next(events)).__name__ == "DocumentStartEvent":
        _Walker(text, events, spans).value(next(events), (), 0, 0)
    return spans


class _Walker:
    def __init__(self, text: str, events: Iterator[Any], spans: dict[KeyPath, YamlSpan]) -> None:
        self._text = text
        self._events = events
        self._spans = spans
        self._closed_at = 0

    def value(self, event: Any, path: KeyPath, key_start: int, key_end: int) -> int:
        """Note one value and what is in it; return the index where it ends."""
        kind = type(event).__name__
        start, end, column = event.start_mark.index, event.end_mark.index, 0
        if kind == "ScalarEvent" and start == end and path and isinstance(path[-1], str):
            # A key without a value: the event stands somewhere behind, the value behind the colon.
            start = end = self._text.index(":", key_end) + 1
        children: list[KeyPath] = []
        flow = bool(getattr(event, "flow_style", False))
        if kind == "MappingStartEvent":
            end, column = self._pairs(path, end, children)
        elif kind == "SequenceStartEvent":
            end = self._items(path, end, children)
        if flow:
            # The closing bracket was read last; a block collection ends with its last value.
            end = self._closed_at
        self._spans[path] = YamlSpan(
            start, end, key_start, key_end, _KINDS[kind], flow, column, tuple(children)
        )
        return end

    def _pairs(self, path: KeyPath, end: int, children: list[KeyPath]) -> tuple[int, int]:
        column = 0
        while type(key := next(self._events)).__name__ != "MappingEndEvent":
            if not children:
                column = key.start_mark.column
            child = (*path, key.value)
            children.append(child)
            end = self.value(next(self._events), child, key.start_mark.index, key.end_mark.index)
        self._closed_at = key.end_mark.index
        return end, column

    def _items(self, path: KeyPath, end: int, children: list[KeyPath]) -> int:
        while type(item := next(self._events)).__name__ != "SequenceEndEvent":
            child = (*path, len(children))
            children.append(child)
            end = self.value(item, child, item.start_mark.index, item.start_mark.index)
        self._closed_at = item.end_mark.index
        return end


_KINDS = {
    "ScalarEvent": "scalar",
    "AliasEvent": "alias",
    "MappingStartEvent": "map",
    "SequenceStartEvent": "list",
}
