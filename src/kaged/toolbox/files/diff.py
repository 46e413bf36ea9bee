"""`unified_diff`: what an edit changed, from the replaced regions alone, and never too long."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from itertools import islice
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.files.matching import Replacement

CONTEXT_LINES: Final = 3
MAX_DIFF_LINES: Final = 80
MAX_DIFF_LINE_CHARS: Final = 300
MAX_COMPARED_LINES: Final = 300
"""Of a replaced text with more lines only what it begins and ends with is compared."""

MAX_DIFF_SPANS: Final = 500
"""Of an edit with more places than this only the first ones are looked at."""


@dataclass(slots=True)
class _Region:
    """Whole lines of the old text, from `start` to `end`, and what they became."""

    start: int
    end: int
    new: list[bytes]
    filled: int


@dataclass(slots=True)
class _Hunk:
    """Regions that are near each other, with the lines between and around them."""

    first: int
    shift: int
    lines: list[str]
    old: int = 0
    new: int = 0

    def add(self, mark: str, block: bytes) -> None:
        """Take some whole lines; `mark` is that of a unified diff."""
        if not block:
            return
        count = block.count(b"\n") + (not block.endswith(b"\n"))
        # What is beyond the limit is counted and not looked at.
        lines = block.split(b"\n", MAX_DIFF_LINES + 1)[: min(count, MAX_DIFF_LINES + 1)]
        self.lines += [mark + _shown(line) for line in lines]
        self.old += count if mark != "+" else 0
        self.new += count if mark != "-" else 0

    def text(self) -> list[str]:
        """Return the hunk with its head."""
        # A side without lines is counted from the line before it.
        old = f"{self.first if self.old else self.first - 1},{self.old}"
        start = self.first + self.shift
        new = f"{start if self.new else start - 1},{self.new}"
        return [f"@@ -{old} +{new} @@", *self.lines]


def unified_diff(edit: Replacement, path: str) -> str:
    """Return a unified diff of an edit, cut after 80 lines with a note how much is left out."""
    body = edit.before
    shown = [f"--- {path}", f"+++ {path}"]
    hunk: _Hunk | None = None
    shift = 0
    at, number = 0, 1
    left_out = max(len(edit.spans) - MAX_DIFF_SPANS, 0)
    for region in _changed_lines(edit):
        between = body.count(b"\n", at, region.start)
        if hunk is not None and between <= 2 * CONTEXT_LINES:
            hunk.add(" ", body[at : region.start])
        else:
            if hunk is not None:
                hunk.add(" ", _lines_after(body, at))
                shown += hunk.text()
                shift += hunk.new - hunk.old
                hunk = None
            if len(shown) < MAX_DIFF_LINES:
                lead = _lines_before(body, region.start)
                hunk = _Hunk(number + between - lead.count(b"\n"), shift, [])
                hunk.add(" ", lead)
        number += between + body.count(b"\n", region.start, region.end)
        at = region.end
        if hunk is None or len(hunk.lines) > MAX_DIFF_LINES:
            left_out += 1
            continue
        hunk.add("-", body[region.start : region.end])
        hunk.add("+", b"".join((*region.new, body[region.filled : region.end])))
    if hunk is not None:
        hunk.add(" ", _lines_after(body, at))
        shown += hunk.text()
    if len(shown) > MAX_DIFF_LINES:
        del shown[MAX_DIFF_LINES:]
        left_out += 1
    if left_out:
        shown.append(f"… cut here; {left_out} more regions are not or not fully shown")
    return "\n".join(shown)


def first_line(edit: Replacement) -> int:
    """Return the number of the first line that an edit touched."""
    return edit.before.count(b"\n", 0, edit.spans[0][0]) + 1


def _changed_lines(edit: Replacement) -> Iterator[_Region]:
    """Yield what really changed: a replaced text often begins and ends with what stays."""
    for region in _regions(edit):
        old = _split(edit.before[region.start : region.end])
        new = b"".join((*region.new, edit.before[region.filled : region.end]))
        at, done = region.start, 0
        for start, end, lines in _changes(old, _split(new)):
            at += sum(map(len, old[done:start]))
            until = at + sum(map(len, old[start:end]))
            yield _Region(at, until, [b"".join(lines)], until)
            at, done = until, end


def _changes(old: list[bytes], new: list[bytes]) -> Iterator[tuple[int, int, list[bytes]]]:
    """Yield which lines of the old became which new ones; nothing for those that stayed."""
    front = 0
    while front < min(len(old), len(new)) and old[front] == new[front]:
        front += 1
    back = 0
    while back < min(len(old), len(new)) - front and old[-1 - back] == new[-1 - back]:
        back += 1
    first, second = old[front : len(old) - back], new[front : len(new) - back]
    if len(first) > MAX_COMPARED_LINES or len(second) > MAX_COMPARED_LINES:
        yield front, front + len(first), second
        return
    for kind, start, end, new_start, new_end in SequenceMatcher(
        None, first, second, autojunk=False
    ).get_opcodes():
        if kind != "equal":
            yield front + start, front + end, second[new_start:new_end]


def _split(data: bytes) -> list[bytes]:
    """Cut into lines at line feeds only, each with its own."""
    lines = [line + b"\n" for line in data.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    return lines if lines[-1] else lines[:-1]


def _regions(edit: Replacement) -> Iterator[_Region]:
    body = edit.before
    region: _Region | None = None
    line_start, line_end = 0, 0
    for (start, end), piece in islice(zip(edit.spans, edit.pieces, strict=True), MAX_DIFF_SPANS):
        # Many places in one long line: its beginning is looked for once.
        if not line_start <= start < line_end:
            line_start = body.rfind(b"\n", line_end, start) + 1 or line_end
        # A region that ends with a line break before and after needs no line behind it.
        joins = region is not None and line_start < region.end
        whole = piece.endswith(b"\n") or (not piece and start == line_start and not joins)
        at = end - 1 if whole and body[end - 1 : end] == b"\n" else -1
        if at < 0:
            at = line_end - 1 if end < line_end else body.find(b"\n", end)
        first, line_end = line_start, len(body) if at < 0 else at + 1
        line_start = body.rfind(b"\n", start, line_end - 1) + 1 or first
        if joins and region is not None:
            region.new += (body[region.filled : start], piece)
            region.filled = end
            region.end = max(region.end, line_end)
            continue
        if region is not None:
            yield region
        region = _Region(first, line_end, [body[first:start], piece], end)
    if region is not None:
        yield region


def _lines_before(body: bytes, start: int) -> bytes:
    at = start
    for _ in range(CONTEXT_LINES):
        if at <= 0:
            break
        at = body.rfind(b"\n", 0, at - 1) + 1
    return body[at:start]


def _lines_after(body: bytes, end: int) -> bytes:
    at = end
    for _ in range(CONTEXT_LINES):
        found = body.find(b"\n", at)
        if found < 0:
            at = len(body)
            break
        at = found + 1
    return body[end:at]


def _shown(line: bytes) -> str:
    text = line[: MAX_DIFF_LINE_CHARS * 4 + 4].decode("utf-8", "replace").removesuffix("\r")
    return text if len(text) <= MAX_DIFF_LINE_CHARS else text[:MAX_DIFF_LINE_CHARS] + "…"
