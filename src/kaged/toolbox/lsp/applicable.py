"""`applicable`: the edits of a code action as `edit.text` takes them, found by their text. Pure.

A server says where; `edit.text` says what. An insertion has no text to be found by, and a name is
in a file many times. So each gets as many lines around it as make it the only one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from kaged.toolbox.lsp.edits import TextEdit

MAX_OLD_CHARS: Final = 20_000
"""So much of a file is quoted to make an edit findable, at most."""


class FindableEdit(NamedTuple):
    """A text that is in the file once, and what it becomes. `start` is where it is."""

    start: int
    old: str
    new: str


def applicable(text: str, edits: Iterable[TextEdit]) -> list[FindableEdit] | None:
    """Return edits that can be made one after another by their texts, in the order of the file.

    None when they overlap, or so much of the file is alike that this cannot be done.
    """
    ordered = sorted(edits, key=lambda one: (one.start, one.end))
    if any(one.end > after.start for one, after in pairwise(ordered)):
        return None
    found: list[tuple[int, int, list[TextEdit]]] = []
    for edit in ordered:
        start, end = _findable(text, edit.start, edit.end)
        own = [edit]
        while found and start < found[-1][1]:
            # Each would quote what the other changes.
            first, last, before = found.pop()
            start, end, own = min(first, start), max(last, end), [*before, *own]
        found.append((start, end, own))
    made = [FindableEdit(start, text[start:end], _edited(text, start, end, own))
            for start, end, own in found]  # fmt: skip
    wanted = _edited(text, 0, len(text), ordered)
    if _works(text, made, wanted):
        return made
    if not found:
        return []
    start, end = _findable(text, found[0][0], found[-1][1])
    # A piece that overlaps itself is found in another place; the whole of a file is not.
    for first, last in ((start, end), (0, min(len(text), MAX_OLD_CHARS))):
        one = [FindableEdit(first, text[first:last], _edited(text, first, last, ordered))]
        if _works(text, one, wanted):
            return one
    return None


def _findable(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the smallest piece of whole lines around a place that is in the text only once."""
    if start < end and text.count(text[start:end]) == 1:
        return start, end
    begin, stop = text.rfind("\n", 0, start) + 1, _line_end(text, end)
    while text.count(text[begin:stop]) != 1 or begin == stop:
        if (begin == 0 and stop == len(text)) or stop - begin > MAX_OLD_CHARS:
            break
        begin = text.rfind("\n", 0, max(begin - 1, 0)) + 1
        stop = _line_end(text, min(stop + 1, len(text)))
    return begin, stop


def _line_end(text: str, at: int) -> int:
    found = text.find("\n", at)
    return len(text) if found < 0 else found


def _edited(text: str, start: int, end: int, edits: Sequence[TextEdit]) -> str:
    parts: list[str] = []
    at = start
    for edit in edits:
        parts += (text[at : edit.start], edit.new_text)
        at = edit.end
    return "".join((*parts, text[at:end]))


def _works(text: str, edits: Sequence[FindableEdit], wanted: str) -> bool:
    """Return whether each is findable when those before it have been made, and where it is meant.

    What one edit writes may be what the next one looks for, so the end counts.
    """
    for edit in edits:
        if not edit.old or text.count(edit.old) != 1:
            return False
        text = text.replace(edit.old, edit.new, 1)
    return text == wanted
