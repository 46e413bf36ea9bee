"""Sessions out into files and in again: without loss, and in without trust."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

import msgspec

from kaged.base import iso_utc
from kaged.kernel.ownership import Ownership
from kaged.sessions.content import encode_content, words_of
from kaged.sessions.lifecycle import SessionEvent
from kaged.sessions.session_file import (
    FORMAT,
    VERSION,
    FileEntry,
    FileHead,
    FileSession,
    FileTail,
    ParsedSession,
    parse_export,
)
from kaged.store.entry_rows import EntryRow
from kaged.store.session_rows import SessionKind, SessionRecord, SessionStatus

if TYPE_CHECKING:
    from kaged.base import Clock, Ids, JsonObject
    from kaged.sessions.entry import Entry
    from kaged.sessions.lifecycle import Lifecycle
    from kaged.sessions.transcript import Transcript
    from kaged.store import Store

PAGE_ENTRIES: Final = 500

_encode = msgspec.json.Encoder().encode


async def export_session(transcript: Transcript, session: SessionRecord) -> AsyncIterator[bytes]:
    """Yield a session as lines of JSON: everything it shows now, forks made whole."""
    yield _line(
        FileHead(
            FORMAT,
            VERSION,
            FileSession(
                session.id,
                SessionKind(session.kind),
                session.title,
                session.model,
                session.parent_session,
                session.parent_entry,
                iso_utc(session.created_at_ms),
            ),
        )
    )
    count, after = 0, None
    while count < session.entry_count:
        limit = min(PAGE_ENTRIES, session.entry_count - count)
        page = await transcript.entries(session.id, after=after, limit=limit)
        if not page:
            break
        yield b"".join(_line(_written(entry, session)) for entry in page)
        count, after = count + len(page), page[-1].id
    yield _line(FileTail(count))


async def import_session(
    store: Store,
    lifecycle: Lifecycle,
    data: bytes,
    *,
    project_id: str,
    operator_id: str | None,
    ownership: Ownership,
    clock: Clock,
    ids: Ids,
) -> tuple[SessionRecord, str]:
    """Take in a session as a new one; its entries keep their ids. Gives it and where it came from.

    Raises:
        KagedError: `session_import_invalid`; the data is no whole export; nothing was taken in.
    """
    now_ms = clock.now_ms()
    parsed = await asyncio.to_thread(parse_export, data, now_ms)
    session_id = ids.tagged("ses")
    rows, words, marks = await asyncio.to_thread(_rows, parsed, session_id)
    fresh = SessionRecord(
        id=session_id,
        project_id=project_id,
        kind=SessionKind.PRIMARY.value,
        status=SessionStatus.IDLE.value,
        detail=None,
        bound_issue=None,
        created_at_ms=now_ms,
        updated_at_ms=now_ms,
        title=parsed.title,
        model=parsed.model,
        operator_id=operator_id,
        head_entry=rows[-1].id,
        head_position=rows[-1].position,
        owner=ownership.owner,
        chat_id=ownership.chat_id,
        audience=ownership.audience.value,
    )
    made = await store.branches.adopt(fresh, rows, words, marks)
    lifecycle.emit(
        SessionEvent(
            "session.created",
            made.id,
            project_id,
            None,
            {"kind": made.kind, "title": made.title, "imported_from": parsed.origin},
        )
    )
    return made, parsed.origin


def _rows(
    parsed: ParsedSession, session_id: str
) -> tuple[list[EntryRow], list[str], list[tuple[str, str, int]]]:
    rows: list[EntryRow] = []
    words: list[str] = []
    positions = {line.id: position for position, line in enumerate(parsed.lines)}
    for position, line in enumerate(parsed.lines):
        content: JsonObject = line.content  # pyright: ignore[reportAssignmentType] - decoded JSON
        role = None if line.role is None else line.role.value
        rows.append(
            EntryRow(
                session_id, position, line.id, line.kind.value, role, line.agent, line.run_id,
                parsed.times_ms[position], encode_content(content),
            )
        )  # fmt: skip
        words.append(words_of(line.kind.value, content))
    marks = [
        (line.id, line.superseded_by, positions[line.superseded_by])
        for line in parsed.lines
        if line.superseded_by is not None
    ]
    return rows, words, marks


def _written(entry: Entry, session: SessionRecord) -> FileEntry:
    by = entry.superseded_by
    # A compaction that came while the export runs is not in it.
    if by is not None and session.head_entry is not None and by > session.head_entry:
        by = None
    return FileEntry(
        entry.id,
        iso_utc(entry.ts_ms),
        entry.kind,
        entry.agent,
        {**entry.content},
        entry.role,
        entry.run_id,
        by,
    )


def _line(value: msgspec.Struct) -> bytes:
    try:
        return _encode(value) + b"\n"
    except UnicodeEncodeError:
        # Half a surrogate pair, which UTF-8 has no form for, leaves as a question mark.
        text = json.dumps(msgspec.to_builtins(value), ensure_ascii=False, separators=(",", ":"))
        return text.encode("utf-8", "replace") + b"\n"
