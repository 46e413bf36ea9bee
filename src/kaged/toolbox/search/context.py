"""The lines around matches, read through the path guard whoever asks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.search.lines import MARK, lines_of
from kaged.toolbox.search.place import Sight
from kaged.toolbox.search.records import RawHit
from kaged.workspace import Workspace

MAX_CONTEXT: Final = 50
CONTEXT_CHARS: Final = 500


class Around(NamedTuple):
    """The lines before and after one match."""

    before: list[JsonValue]
    after: list[JsonValue]

    def as_json(self) -> JsonObject:
        """Return the members that an entry gets."""
        return {"before": self.before, "after": self.after}


def lines_around(
    hits: Iterable[RawHit], before: int, after: int, sight: Sight, workspace: Workspace
) -> dict[tuple[bytes, int], Around]:
    """Return the lines around each hit whose file may be read. Blocks on the disk."""
    found: dict[tuple[bytes, int], Around] = {}
    path = b""
    lines: list[bytes] = []
    for hit in hits:  # sorted by path, so that each file is read once
        if not sight.readable(hit.path):
            continue
        if hit.path != path:
            path, lines = hit.path, lines_of(hit.path, sight, workspace) or []
        found[hit.path, hit.line] = around(lines, hit.line, before, after)
    return found


def around(lines: Sequence[bytes], line: int, before: int, after: int) -> Around:
    """Return what stands around the line of that number, counted from 1."""
    at = line - 1
    return Around(
        [_shown(one) for one in lines[max(at - before, 0) : at]],
        [_shown(one) for one in lines[at + 1 : at + 1 + after]],
    )


def _shown(line: bytes) -> str:
    text = line.removesuffix(b"\r").decode("utf-8", "replace")
    return text if len(text) <= CONTEXT_CHARS else f"{text[:CONTEXT_CHARS]}{MARK}"
