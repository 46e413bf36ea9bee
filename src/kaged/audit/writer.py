"""`ChainWriter`: seals pending events into rows and hands them to the sink, in one thread."""

from __future__ import annotations

from collections.abc import Sequence

from kaged.audit.chain import ChainHead, ChainKey
from kaged.audit.errors import ChainMoved
from kaged.audit.keyfile import HeadFile
from kaged.audit.pending import PendingEvent
from kaged.audit.row import TS_MAX_MS, AuditRow
from kaged.audit.sink import AuditSink
from kaged.base import Clock, Ids, JsonObject, JsonValue

HEAD_EVERY_S = 1.0


class ChainWriter:
    """Owns the end of the chain. Not thread-safe: used by the log's one thread only.

    `write` either adds a whole batch or raises and adds nothing. When a sink failed in a way that
    leaves open whether it kept the batch, the next attempt looks first.
    """

    def __init__(
        self,
        sink: AuditSink,
        key: ChainKey,
        clock: Clock,
        ids: Ids,
        head_file: HeadFile | None,
    ) -> None:
        self._sink = sink
        self._key = key
        self._clock = clock
        self._ids = ids
        self._head_file = head_file
        self._attempted: tuple[PendingEvent, ...] = ()
        self._attempted_rows: tuple[AuditRow, ...] = ()
        self._head_written_s: float | None = None
        self._head_dirty = False
        self.head = ChainHead(0, "")
        self.head_file_error: str | None = None

    def open(self) -> JsonObject | None:
        """Find the end of the chain; return a mismatch event's data if it is not as anchored."""
        self.head = self._sink.head()
        found = self._examine()
        # With a mismatch the head file keeps its evidence until the event about it is durable.
        self._head_dirty = found is None
        self.write_head()
        return found

    def write(self, batch: Sequence[PendingEvent]) -> tuple[AuditRow, ...]:
        """Seal the batch and keep it; return the rows once they are durable."""
        kept = self._settle_attempt()
        if kept:
            # The batch that seemed to fail is in the log. What was in it must not go in twice.
            known = {id(one) for one in self._attempted}
            batch = [one for one in batch if id(one) not in known]
        rows = self._seal(batch)
        if rows:
            head = ChainHead(rows[-1].seq, rows[-1].hash)
            self._attempted, self._attempted_rows = tuple(batch), rows
            self._sink.append(rows, self._key.sign_anchor(head, rows[-1].ts_ms))
            self.head = head
            self._head_dirty = True
        self._attempted, self._attempted_rows = (), ()
        return kept + rows

    @property
    def head_due_s(self) -> float | None:
        """In how many seconds the head file should be written; None when it is up to date."""
        if self._head_file is None or not self._head_dirty:
            return None
        if self._head_written_s is None:
            return 0.0
        return max(0.0, self._head_written_s + HEAD_EVERY_S - self._clock.monotonic_s())

    def write_head(self) -> None:
        """Bring the head file up to date.

        A failure is kept in `head_file_error` and not raised: the rows themselves are safe, and
        the anchor in the database still stands.
        """
        if self._head_file is None or not self._head_dirty:
            return
        self._head_written_s = self._clock.monotonic_s()
        try:
            self._head_file.write(self._key.sign_anchor(self.head, self._clock.now_ms()))
        except OSError as error:
            self.head_file_error = f"{self._head_file.path}: {error.strerror or error}"
        else:
            self._head_dirty = False
            self.head_file_error = None

    def _seal(self, batch: Sequence[PendingEvent]) -> tuple[AuditRow, ...]:
        hash_, ulid = self._key.hash, self._ids.ulid
        seq, last_hash = self.head
        rows: list[AuditRow] = []
        for one in batch:
            if not one.name:
                continue
            seq += 1
            project_id, request_id, data_json = one.texts()
            parts = (
                seq,
                ulid(),
                min(max(one.ts_ms, 0), TS_MAX_MS),
                one.name,
                project_id,
                request_id,
                data_json,
                last_hash,
            )
            last_hash = hash_(*parts)
            rows.append(AuditRow(*parts, last_hash))
        return tuple(rows)

    def _settle_attempt(self) -> tuple[AuditRow, ...]:
        """Look what became of a batch whose writing failed; return its rows if it was kept."""
        rows = self._attempted_rows
        if not rows:
            return ()
        found = self._sink.head()
        last = ChainHead(rows[-1].seq, rows[-1].hash)
        if found == last:
            self.head = last
            self._head_dirty = True
            return rows
        if found != self.head:
            # Someone else wrote. With our key it is another daemon on the same database; without
            # it, a forger, and the chain would go on from a forged row.
            anchor = self._sink.anchor()
            if anchor is None or not self._key.holds_anchor(anchor) or anchor[:2] != found:
                raise ChainMoved(
                    f"row {found.seq} of the audit log was not written by this daemon",
                    fix="stop the daemon, look at `kaged audit verify`, and start it again",
                    found_seq=found.seq,
                    expected_seq=self.head.seq,
                )
            self.head = found
        return ()

    def _examine(self) -> JsonObject | None:
        head, key = self.head, self._key
        problems: list[JsonValue] = []
        table = self._sink.anchor()
        if table is None:
            if head.seq:
                problems.append("table_anchor_missing")
        elif not key.holds_anchor(table):
            problems.append("other_key" if table.key_id != key.key_id else "table_anchor_invalid")
        elif table[:2] != head:
            problems.append("rows_missing" if table.seq > head.seq else "rows_added")
        file = self._head_file.read() if self._head_file is not None else None
        if file is None:
            if self._head_file is not None and head.seq:
                problems.append("head_file_missing")
        elif not key.holds_anchor(file):
            problems.append("head_file_invalid")
        elif file.seq > head.seq:
            problems.append("rows_missing_since_head_file")
        elif file.seq and self._sink.hash_at(file.seq) != file.hash:
            problems.append("history_replaced")
        if not problems:
            return None
        return {
            "problems": problems,
            "found_seq": head.seq,
            "found_hash": head.hash,
            "table_seq": table.seq if table else None,
            "table_hash": table.hash if table else None,
            "file_seq": file.seq if file else None,
            "file_hash": file.hash if file else None,
        }
