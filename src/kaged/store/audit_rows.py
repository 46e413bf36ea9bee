"""`AuditRows`: where the audit log's rows are kept, found, checked and exported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.exc import OperationalError

from kaged.audit import (
    Anchor,
    AuditFilter,
    AuditRow,
    ChainHead,
    ChainKey,
    ChainMoved,
    ChainVerifier,
    ExportWriter,
    HeadFile,
    VerifyReport,
)
from kaged.audit.chain import EMPTY
from kaged.kernel.identity import PRIVATE_CHAT, Actor
from kaged.kernel.ownership import AccessAction
from kaged.store.page import Page, clamp_limit, encode_cursor, parse_cursor
from kaged.store.prepared import PreparedStatement
from kaged.store.rows import RowRepository
from kaged.store.schema import audit_anchor, audit_events, sessions
from kaged.store.session_rows import visible_sessions
from kaged.store.usable_projects import usable_projects

T = TypeVar("T")

CHUNK_ROWS = 4000
_C = audit_events.c

# Prepared: every batch of events needs them.
_HEAD = PreparedStatement(sa.select(_C.seq, _C.hash).order_by(_C.seq.desc()).limit(1))
_NO_ANCHOR = PreparedStatement(sa.delete(audit_anchor))
_NEW_ANCHOR = PreparedStatement(
    sa.insert(audit_anchor).values({one.name: sa.bindparam(one.name) for one in audit_anchor.c})
)


class AuditRows(RowRepository):
    """The rows of the audit log. Implements `AuditSink` for the log itself.

    There is no way to change or remove a row.
    """

    def append(self, rows: Sequence[AuditRow], anchor: Anchor) -> None:
        """Keep rows and anchor in one transaction; durable when this returns. Blocks.

        Raises:
            ChainMoved: the rows do not continue the stored chain.
        """
        follows = ChainHead(rows[0].seq - 1, rows[0].prev_hash)
        backend = self._database.backend

        def work(conn: sa.Connection) -> None:
            found = _head(conn)
            if found != follows:
                raise ChainMoved(
                    f"the audit log ends at row {found.seq}, not at {follows.seq}",
                    found_seq=found.seq,
                    expected_seq=follows.seq,
                )
            backend.insert_rows(conn, audit_events, rows)
            _NO_ANCHOR.run(conn)
            _NEW_ANCHOR.run(conn, {"id": 1, **anchor._asdict()})

        self._database.write_blocking(work)

    def head(self) -> ChainHead:
        """Return the last row, after everything that was handed in before. Blocks."""
        return self._blocking(_head)

    def anchor(self) -> Anchor | None:
        """Return the anchor that is kept beside the rows. Blocks."""
        return self._blocking(_anchor)

    def hash_at(self, seq: int) -> str | None:
        """Return the stored hash of one row. Blocks."""

        def work(conn: sa.Connection) -> str | None:
            return conn.execute(sa.select(_C.hash).where(_C.seq == seq)).scalar()

        return self._blocking(work)

    async def query(
        self,
        wanted: AuditFilter | None = None,
        cursor: str | None = None,
        limit: int | None = None,
        *,
        oldest_first: bool = False,
        actor: Actor | None = None,
    ) -> Page[AuditRow]:
        """Return a page of the rows that are wanted, newest first unless told otherwise.

        People get what is on record about their own sessions and accounts, and nothing else.

        Raises:
            StoreError: `invalid_cursor`; the cursor is not from a page of this list.
            StoreError: `store_timeout`; a search for text went through too much.
        """
        position = parse_cursor(cursor)
        size = clamp_limit(limit)
        conditions = [*_conditions(wanted or AuditFilter()), own_rows(actor)]
        if position is not None:
            conditions.append(_C.seq > position if oldest_first else _C.seq < position)

        def work(conn: sa.Connection) -> list[AuditRow]:
            return _fetch(conn, conditions, size + 1, newest_first=not oldest_first)

        found = await self._database.read(work)
        more = len(found) > size
        items = tuple(found[:size])
        return Page(items, encode_cursor(items[-1].seq) if more else None)

    async def get(self, seq: int) -> AuditRow | None:
        """Return one row by its number."""
        found = await self._database.read(lambda conn: _fetch(conn, [_C.seq == seq], 1))
        return found[0] if found else None

    async def iter_rows(self, wanted: AuditFilter | None = None) -> AsyncIterator[AuditRow]:
        """Yield all wanted rows, oldest first, holding a few thousand at a time."""
        async for chunk in self._chunks(wanted or AuditFilter()):
            for row in chunk:
                yield row

    async def verify(
        self,
        key: ChainKey,
        head_file: HeadFile | None = None,
        *,
        accepted: frozenset[int] = frozenset(),
    ) -> VerifyReport:
        """Check the whole chain and its anchors, in constant memory and beside a running daemon.

        `accepted` are the numbers of `audit.chain_mismatch` rows that a person has looked into.
        """
        # Anchors first: rows that arrive while we read can then only be more than they name.
        anchors: dict[str, Anchor | None] = {}
        if head_file is not None:
            anchors["file"] = head_file.read()
        head, table = await self._database.read(lambda conn: (_head(conn), _anchor(conn)))
        if head.seq or table is not None:
            anchors["table"] = table
        verifier = ChainVerifier(key, anchors, accepted=accepted)
        after = 0
        while True:

            def work(conn: sa.Connection, after: int = after) -> int:
                # Hashing happens here, in the reader's thread, and not on the event loop.
                chunk = _fetch(conn, [_C.seq > after], CHUNK_ROWS, make=_exact)
                verifier.feed(chunk)
                return chunk[-1].seq if chunk else 0

            last = await self._database.read(work)
            if not last:
                return verifier.finish()
            after = last

    async def export(
        self, key: ChainKey, wanted: AuditFilter | None = None
    ) -> AsyncIterator[bytes]:
        """Yield the log, or the wanted part of it, as JSON lines with a signed end."""
        writer = ExportWriter(key, wanted)
        yield writer.header()
        async for chunk in self._chunks(wanted or AuditFilter()):
            yield writer.lines(chunk)
        yield writer.end()

    async def _chunks(self, wanted: AuditFilter) -> AsyncIterator[list[AuditRow]]:
        conditions = _conditions(wanted)
        after = 0
        while True:

            def work(conn: sa.Connection, after: int = after) -> list[AuditRow]:
                return _fetch(conn, [*conditions, _C.seq > after], CHUNK_ROWS)

            chunk = await self._database.read(work)
            if not chunk:
                return
            yield chunk
            after = chunk[-1].seq

    def _blocking(self, work: Callable[[sa.Connection], T]) -> T:
        # Through the writer where there is one: it answers in order, so a batch whose outcome was
        # in doubt is settled before its question is answered.
        if self._database.read_only:
            return self._database.read_blocking(work)
        return self._database.write_blocking(work)


def _head(conn: sa.Connection) -> ChainHead:
    found = _HEAD.first(conn)
    return EMPTY if found is None else ChainHead(*found)


def _anchor(conn: sa.Connection) -> Anchor | None:
    c = audit_anchor.c
    record = conn.execute(sa.select(c.seq, c.hash, c.ts_ms, c.key_id, c.mac)).first()
    return None if record is None else Anchor(*record)


def _conditions(wanted: AuditFilter) -> list[sa.ColumnElement[bool]]:
    found: list[sa.ColumnElement[bool]] = []
    if wanted.names and "*" not in wanted.names:
        found.append(sa.or_(*(_named(pattern) for pattern in wanted.names)))
    if wanted.project_id is not None:
        found.append(_C.project_id == wanted.project_id)
    if wanted.request_id is not None:
        found.append(_C.request_id == wanted.request_id)
    if wanted.since_ms is not None:
        found.append(_C.ts_ms >= wanted.since_ms)
    if wanted.until_ms is not None:
        found.append(_C.ts_ms < wanted.until_ms)
    if wanted.after_seq:
        found.append(_C.seq > wanted.after_seq)
    if wanted.text:
        found.append(
            sa.or_(
                _C.name.icontains(wanted.text, autoescape=True),
                _C.data.icontains(wanted.text, autoescape=True),
            )
        )
    return found


def own_rows(actor: Actor | None) -> sa.ColumnElement[bool]:
    """Return the condition that a row is about an actor's own sessions or accounts.

    Agents write `caller`, so that says nothing about people. In a group others read along: there
    nothing is shown but what happened in that chat.
    """
    if actor is None or not actor.is_person:
        return sa.true()
    if not actor.person_id:
        return sa.false()
    theirs = sa.select(sessions.c.id).where(visible_sessions(actor, AccessAction.MANAGE))
    # How a call ended is said of the call alone: its beginning, under the same id of the host's,
    # says in which session.
    begun = audit_events.alias()
    call_of_theirs = sa.exists(
        sa.select(begun.c.seq).where(
            begun.c.request_id == _C.request_id,
            begun.c.name == "tool.called",
            sa.func.json_extract(begun.c.data, "$.session_id").in_(theirs),
        )
    )
    about = sa.or_(
        sa.func.json_extract(_C.data, "$.session_id").in_(theirs),
        sa.and_(_named("tool.*"), call_of_theirs),
    )
    if actor.chat_type == PRIVATE_CHAT:
        person = sa.func.json_extract(_C.data, "$.user_id") == actor.person_id
        about = sa.or_(about, person)
    return sa.and_(about, usable_projects(actor, _C.project_id))


def _named(pattern: str) -> sa.ColumnElement[bool]:
    if not pattern.endswith(".*"):
        return _C.name == pattern
    # A range and not LIKE, so that the index on names serves it: "/" is the character behind ".".
    prefix = pattern[:-2]
    return (_C.name >= f"{prefix}.") & (_C.name < f"{prefix}/")


def _fetch(
    conn: sa.Connection,
    conditions: Sequence[sa.ColumnElement[bool]],
    limit: int,
    *,
    newest_first: bool = False,
    make: Callable[[Sequence[Any]], AuditRow] | None = None,
) -> list[AuditRow]:
    order = _C.seq.desc() if newest_first else _C.seq
    try:
        wanted = sa.select(*_C).where(*conditions).order_by(order).limit(limit)
        return [(make or _as_row)(record) for record in conn.execute(wanted).all()]
    except OperationalError as error:
        if not isinstance(error.orig, Exception) or "UTF-8" not in str(error.orig):
            raise
        # Text that is no UTF-8 was put there by no program of ours. Read as bytes, so that a
        # reader sees the row and the check can point at it.
        numbers = {"seq", "ts_ms"}
        columns = [one if one.name in numbers else sa.cast(one, sa.LargeBinary) for one in _C]
        raw = sa.select(*columns).where(*conditions).order_by(order).limit(limit)
        return [_as_row(record) for record in conn.execute(raw).all()]


def _exact(record: Sequence[Any]) -> AuditRow:
    """Take a row as it is, for the check: a value of the wrong type fails its hash."""
    return AuditRow(*record)


def _as_row(record: Sequence[object]) -> AuditRow:
    """Make a row of whatever is in the table; a forger may have put anything there."""
    seq, id_, ts_ms, name, project_id, request_id, data, prev_hash, hash_ = record
    return AuditRow(
        seq if isinstance(seq, int) else 0,
        _text(id_),
        ts_ms if isinstance(ts_ms, int) else 0,
        _text(name),
        None if project_id is None else _text(project_id),
        None if request_id is None else _text(request_id),
        _text(data),
        _text(prev_hash),
        _text(hash_),
    )


def _text(value: object) -> str:
    if isinstance(value, str):
        return value
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
