"""A session as a file: one JSON object per line, read without trust.

The first line says what the file is, then comes one line per entry, and the last line says how
many there were, so that a file that was cut short is no file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final, TypeVar, cast

import msgspec

from kaged.base import KagedError
from kaged.base.ids import ulid_time_ms
from kaged.base.lazy_dataclass import dataclass
from kaged.sessions.content import CONTENT_LIMIT_BYTES
from kaged.sessions.entry import EntryKind, EntryRole
from kaged.store.session_rows import SessionKind
from kaged.wire.fastjson import decode_json
from kaged.wire.strictjson import NotJson

FORMAT: Final = "kaged-session"
VERSION: Final = 1
IMPORT_LIMIT_BYTES: Final = 32 * 1024 * 1024
ENTRIES_LIMIT: Final = 100_000
AHEAD_LIMIT_MS: Final = 24 * 3600 * 1000  # how far the clock of another machine may be ahead
BLOCKS_LIMIT: Final = 10_000
NAME_LIMIT_CHARS: Final = 1000

T = TypeVar("T")

# What the blocks of messages must have; others are kept and shown to nobody.
_BLOCKS: Final = {
    "text": ("text",),
    "thinking": ("text",),
    "tool_call": ("id", "name"),
    "tool_result_block": ("call_id",),
}


class FileSession(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the file says about the session itself."""

    id: str
    kind: SessionKind
    title: str | None
    model: str | None
    parent_session: str | None
    parent_entry: str | None
    created_at: str


class FileHead(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int
    session: FileSession


class FileEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One entry."""

    id: str
    ts: str
    kind: EntryKind
    agent: str
    content: dict[str, object]
    role: EntryRole | None = None
    run_id: str | None = None
    superseded_by: str | None = None


class FileTail(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The last line."""

    entries: int


@dataclass(frozen=True, slots=True)
class ParsedSession:
    """A session that was read from a file and found in order."""

    origin: str
    title: str | None
    model: str | None
    lines: tuple[FileEntry, ...]
    times_ms: tuple[int, ...]


def parse_export(data: bytes, now_ms: int) -> ParsedSession:
    """Read a file that came from anywhere.

    Raises:
        KagedError: `session_import_invalid`; it is too large, cut short, or anything but an export.
    """
    if len(data) > IMPORT_LIMIT_BYTES:
        raise _invalid(0, f"has more than {IMPORT_LIMIT_BYTES} bytes")
    lines = data.split(b"\n")
    if not lines[-1]:
        lines.pop()
    if not 3 <= len(lines) <= ENTRIES_LIMIT + 2:
        raise _invalid(0, f"has to have 3 to {ENTRIES_LIMIT + 2} lines, and has {len(lines)}")
    first = _parsed(lines[0], FileHead, 1)
    if first.format != FORMAT or first.version != VERSION:
        raise _invalid(1, f"is no `{FORMAT}` of version {VERSION}")
    last = _parsed(lines[-1], FileTail, len(lines))
    if last.entries != len(lines) - 2:
        raise _invalid(len(lines), f"says {last.entries} entries, there are {len(lines) - 2}")
    title, model = first.session.title, first.session.model
    for text in (title, model, first.session.id):
        if text is not None and len(text) > NAME_LIMIT_CHARS:
            raise _invalid(1, "has a text that is too long")
    checker = _Checker(now_ms)
    entries = tuple(
        checker.checked(_parsed(line, FileEntry, number), number)
        for number, line in enumerate(lines[1:-1], 2)
    )
    checker.require_compactions(entries)
    return ParsedSession(first.session.id, title, model, entries, tuple(checker.times_ms))


class _Checker:
    """Looks at the entries of a file one after the other."""

    def __init__(self, now_ms: int) -> None:
        self._newest_ms = now_ms + AHEAD_LIMIT_MS
        self._ids: set[str] = set()
        self._last = ""
        self.times_ms: list[int] = []

    def checked(self, line: FileEntry, number: int) -> FileEntry:
        first = not self.times_ms
        if (line.kind is EntryKind.HEADER) != first:
            raise _invalid(
                number, "breaks the rule that the header is the first entry, and only the first"
            )
        self._check_id(line.id, number, first=first)
        self.times_ms.append(self._time(line.ts, number))
        if (line.role is None) == (line.kind is EntryKind.MESSAGE):
            raise _invalid(number, "has a role and is no message, or the other way round")
        for text in (line.agent, line.run_id or "x", line.superseded_by or "x"):
            if not text or len(text) > NAME_LIMIT_CHARS or not text.isprintable():
                raise _invalid(number, "has a name that is too long or not printable")
        if line.kind is EntryKind.MESSAGE:
            _check_blocks(line.content.get("content"), number)
        return line

    def require_compactions(self, lines: tuple[FileEntry, ...]) -> None:
        compactions = {one.id for one in lines if one.kind is EntryKind.COMPACTION}
        for number, line in enumerate(lines, 2):
            by = line.superseded_by
            if by is not None and (
                by not in compactions or by <= line.id or line.kind is EntryKind.HEADER
            ):
                raise _invalid(number, "is superseded by what is no later compaction")

    def _check_id(self, id_: str, number: int, *, first: bool) -> None:
        try:
            made_ms = ulid_time_ms(id_)
        except ValueError:
            raise _invalid(number, "has an id that is no ULID") from None
        if made_ms > self._newest_ms:
            raise _invalid(number, "has an id from the future")
        # A fork's header is newer than what it shares, so it stands outside the order.
        if id_ in self._ids or (not first and id_ <= self._last):
            raise _invalid(number, "has an id that does not follow the one before")
        self._ids.add(id_)
        if not first:
            self._last = id_

    def _time(self, text: str, number: int) -> int:
        try:
            moment = datetime.fromisoformat(text)
            if moment.tzinfo is None or moment.year < 1970:
                raise ValueError
            return round(moment.timestamp() * 1000)
        except (ValueError, OverflowError):
            raise _invalid(number, "has a time that is no ISO 8601 with its zone") from None


def _check_blocks(blocks: object, number: int) -> None:
    if isinstance(blocks, str):
        return
    if not isinstance(blocks, list):
        raise _invalid(number, "is a message without a list of blocks")
    listed = cast("list[object]", blocks)
    if len(listed) > BLOCKS_LIMIT:
        raise _invalid(number, f"has more than {BLOCKS_LIMIT} blocks")
    for one in listed:
        block = cast("dict[str, object]", one) if isinstance(one, dict) else {}
        kind = block.get("type")
        if not isinstance(kind, str):
            raise _invalid(number, "has a block without its type")
        for name in _BLOCKS.get(kind, ()):
            if not isinstance(block.get(name), str):
                raise _invalid(number, f"has a block without its {name}")


def _parsed(line: bytes, kind: type[T], number: int) -> T:
    if len(line) > 2 * CONTENT_LIMIT_BYTES:
        raise _invalid(number, "is too long")
    try:
        return msgspec.convert(decode_json(line), kind)
    except (NotJson, msgspec.ValidationError) as error:
        raise _invalid(number, f"cannot be read: {error}") from None


def _invalid(number: int, problem: str) -> KagedError:
    where = f"Line {number} of the export" if number else "The export"
    return KagedError(
        f"{where} {problem}.",
        code="session_import_invalid",
        fix="import a file that `kaged session export` wrote, unchanged",
        line=number,
    )
