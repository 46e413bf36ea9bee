"""Matches as a caller gets them: as many as fit, cut around the match, for a caged one re-read.

ripgrep opens files by name. A caller who can move directories about could have it open something
else than what was checked. So a caged caller's lines are read again through the path guard, and
what is shown comes from there.
"""

from __future__ import annotations

import asyncio
import codecs
import json
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final, TypeVar

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.toolbox.search.place import Sight
from kaged.toolbox.search.records import RawHit
from kaged.workspace import Workspace

PER_FILE: Final = 20
"""So many hits of one file are taken before others had their turn."""

_TURN: Final = 250
_T = TypeVar("_T")
LINE_CHARS: Final = 2000
MARK: Final = "[truncated]"
_BEFORE_CHARS: Final = 300
MAX_REREAD_BYTES: Final = 64 * 1024 * 1024
_TOO_LARGE: Final = b"[not shown: the file is too large to be read again]"


def content_of(hit: RawHit) -> str:
    """Return a line without its end, over-long ones cut around the match."""
    raw = hit.text.removesuffix(b"\r")
    text = raw.decode("utf-8", "replace")
    if len(text) <= LINE_CHARS and not hit.cut:
        return text
    at = len(raw[: max(hit.column - 1, 0)].decode("utf-8", "replace"))
    begin = 0 if at < LINE_CHARS - _BEFORE_CHARS else at - _BEFORE_CHARS
    front = "…" if begin else ""
    return f"{front}{text[begin : begin + LINE_CHARS]}{MARK}"


def reread(hits: Iterable[RawHit], sight: Sight, workspace: Workspace) -> list[RawHit]:
    """Return the hits the path guard allows, as it sees them. Blocks on the disk."""
    by_path: dict[bytes, list[RawHit]] = {}
    for hit in hits:
        by_path.setdefault(hit.path, []).append(hit)
    out: list[RawHit] = []
    for path, mine in by_path.items():
        if sight.readable(path):
            out += _reread_file(path, mine, sight, workspace)
        else:
            out += mine
    return out


def lines_of(path: bytes, sight: Sight, workspace: Workspace) -> list[bytes] | None:
    """Return the lines of a file as the path guard opens it; None for one that is too large.

    A file that is no longer there has none. Blocks on the disk.
    """
    try:
        handle = workspace.open_read(sight.project_path(path))
    except KagedError:
        return []
    with os.fdopen(handle, "rb") as file:
        if os.fstat(handle).st_size > MAX_REREAD_BYTES:
            return None
        return _as_utf8(file.read(MAX_REREAD_BYTES)).split(b"\n")


def _reread_file(
    path: bytes, hits: list[RawHit], sight: Sight, workspace: Workspace
) -> list[RawHit]:
    lines = lines_of(path, sight, workspace)
    if lines is None:
        return [hit._replace(text=_TOO_LARGE, column=1) for hit in hits]
    if not lines:
        return []  # it is no longer there
    kept: list[RawHit] = []
    for hit in hits:
        # It may not be what ripgrep saw.
        line = lines[hit.line - 1] if hit.line <= len(lines) else b""
        if hit.text.removesuffix(b"\r") in line:
            kept.append(hit)
        elif hit.line <= len(lines):
            kept.append(hit._replace(text=line, column=1, cut=False))
    return kept


def _as_utf8(data: bytes) -> bytes:
    for mark, name in ((codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be")):
        if data.startswith(mark):
            return data.removeprefix(mark).decode(name, "replace").encode("utf-8", "replace")
    return data.removeprefix(codecs.BOM_UTF8)


def fair_share(hits: Sequence[RawHit], limit: int) -> list[RawHit]:
    """Cut sorted hits to a limit so that one hot file cannot hide the others; keeps the order."""
    if len(hits) <= limit:
        return list(hits)
    first: list[int] = []
    later: list[int] = []
    path, taken = b"", 0
    for index, hit in enumerate(hits):
        if hit.path != path:
            path, taken = hit.path, 0
        taken += 1
        (first if taken <= PER_FILE else later).append(index)
    chosen = first[:limit]
    chosen += later[: limit - len(chosen)]
    return [hits[index] for index in sorted(chosen)]


async def fill(
    items: Sequence[_T], entry_of: Callable[[_T], JsonObject], output_bytes: int
) -> tuple[list[JsonValue], bool]:
    """Turn items into entries until their text is too long; return whether all fitted.

    Gives way to other work every now and then: thousands of entries take a while.
    """
    entries: list[JsonValue] = []
    size = 2
    for number, item in enumerate(items):
        entry = entry_of(item)
        size += len(json.dumps(entry)) + 2
        if size > output_bytes:
            return entries, False
        entries.append(entry)
        if number % _TURN == _TURN - 1:
            await asyncio.sleep(0)
    return entries, True
