"""The log as JSON lines with its hashes, for keeping elsewhere and checking there.

One header line, one line per row, one end line that is signed: lines cannot be changed, removed,
added or moved without the check finding it, also in an export of selected rows.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from typing import Any, BinaryIO, Literal, NamedTuple

import msgspec

from kaged.audit.chain import ChainKey
from kaged.audit.filter import AuditFilter
from kaged.audit.row import AuditRow
from kaged.audit.verify import ChainVerifier, FindingKind, VerifyReport
from kaged.base import iso_utc

LINE_LIMIT_BYTES = 1024 * 1024
_ENCODER = msgspec.json.Encoder(order="deterministic")


class _Header(msgspec.Struct):
    kaged_audit_export: Literal[1]
    key_id: str
    complete: bool
    filter: dict[str, Any] = {}


class _ExportLine(msgspec.Struct):
    seq: int
    id: str
    timestamp: str
    event: str
    project_id: str | None
    request_id: str | None
    data: dict[str, Any]
    prev_hash: str
    hash: str


class _ExportEnd(msgspec.Struct):
    rows: int
    complete: bool
    digest: str
    mac: str


class _EndLine(msgspec.Struct):
    end: _ExportEnd


class ExportWriter:
    """Turns rows into the lines of an export, in one pass and constant memory."""

    def __init__(self, key: ChainKey, wanted: AuditFilter | None = None) -> None:
        self._key = key
        self._filter = wanted or AuditFilter()
        self._rows = 0
        self._digest = hashlib.sha256()

    def header(self) -> bytes:
        """Return the first line."""
        complete = self._filter.everything
        head = _Header(1, self._key.key_id, complete, dict(self._filter.to_json()))
        return msgspec.json.encode(head) + b"\n"

    def lines(self, rows: Iterable[AuditRow]) -> bytes:
        """Return the lines of these rows."""
        return b"".join(self._line(row) for row in rows)

    def end(self) -> bytes:
        """Return the last line, which signs all the others."""
        summary = _summary(self._rows, self._filter.everything, self._digest.hexdigest())
        end = _ExportEnd(
            self._rows,
            self._filter.everything,
            self._digest.hexdigest(),
            self._key.sign_export(summary),
        )
        return msgspec.json.encode(_EndLine(end)) + b"\n"

    def _line(self, row: AuditRow) -> bytes:
        self._rows += 1
        self._digest.update(row.hash.encode("utf-8", "surrogatepass"))
        line = _ExportLine(
            row.seq,
            row.id,
            iso_utc(row.ts_ms),
            row.name,
            row.project_id,
            row.request_id,
            row.data,
            row.prev_hash,
            row.hash,
        )
        return msgspec.json.encode(line) + b"\n"


def verify_export(lines: Iterable[bytes], key: ChainKey) -> VerifyReport:
    """Check an export line by line, in constant memory.

    Never raises for what is in the lines; what cannot be read is a finding.
    """
    reader = _ExportReader(key)
    for line in lines:
        reader.feed(line)
    return reader.finish()


class _Sums(NamedTuple):
    rows: int
    digest: str


class _ExportReader:
    def __init__(self, key: ChainKey) -> None:
        self._key = key
        self._chain = ChainVerifier(key)
        self._digest = hashlib.sha256()
        self._header: _Header | None = None
        self._end: _ExportEnd | None = None
        self._number = 0
        self._rows = 0
        self._selected = 0

    def feed(self, line: bytes) -> None:
        self._number += 1
        if not line.strip():
            return
        if len(line) > LINE_LIMIT_BYTES:
            self._malformed("is longer than a line can be")
        elif self._number == 1:
            self._read_header(line)
        elif self._end is not None:
            self._malformed("stands behind the end")
        else:
            self._read_row(line)

    def finish(self) -> VerifyReport:
        if self._header is None and self._number == 0:
            self._chain.malformed("the export is empty")
        self._check_end(_Sums(self._rows, self._digest.hexdigest()))
        report = self._chain.finish()
        complete = self._end is not None and self._end.complete
        return replace(report, rows=report.rows + self._selected, complete=complete)

    def _read_header(self, line: bytes) -> None:
        try:
            self._header = msgspec.json.decode(line, type=_Header)
        except msgspec.DecodeError:
            self._malformed("is no header of an export")
            return
        if self._header.key_id != self._key.key_id:
            self._chain.note(0, FindingKind.OTHER_KEY, "the export was made with another key")

    def _read_row(self, line: bytes) -> None:
        try:
            row = _parse_row(line)
        except (msgspec.DecodeError, ValueError):
            self._read_end(line)
            return
        self._rows += 1
        self._digest.update(row.hash.encode("utf-8", "surrogatepass"))
        if self._header is None or self._header.complete:
            self._chain.feed((row,))
            return
        # A selection has gaps by design: each row is checked by itself, and the end line's digest
        # over all of them finds a removed one.
        self._selected += 1
        if self._key.row_hash(row) != row.hash:
            self._chain.note(row.seq, FindingKind.EDITED, f"row {row.seq} was changed")

    def _read_end(self, line: bytes) -> None:
        try:
            self._end = msgspec.json.decode(line, type=_EndLine).end
        except msgspec.DecodeError:
            self._malformed("is neither a row nor the end")

    def _check_end(self, sums: _Sums) -> None:
        end = self._end
        if end is None:
            self._chain.note(0, FindingKind.TRUNCATED, "the end line is missing")
            return
        wanted = self._key.sign_export(_summary(end.rows, end.complete, end.digest))
        if not hmac.compare_digest(wanted.encode(), end.mac.encode("utf-8", "surrogatepass")) or (
            self._header is not None and end.complete != self._header.complete
        ):
            self._chain.note(0, FindingKind.ANCHOR_INVALID, "the end line was not signed like this")
        elif (end.rows, end.digest) != sums:
            self._chain.note(
                0,
                FindingKind.MISSING if sums.rows < end.rows else FindingKind.EDITED,
                f"{end.rows} rows were exported, these {sums.rows} are not the same",
            )

    def _malformed(self, what: str) -> None:
        self._chain.malformed(f"line {self._number} {what}")


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines of an open file; one too long comes in pieces and fails the check."""
    while line := file.readline(LINE_LIMIT_BYTES + 1):
        yield line


def _parse_row(line: bytes) -> AuditRow:
    parsed = msgspec.json.decode(line, type=_ExportLine)
    moment = datetime.fromisoformat(parsed.timestamp)
    if moment.tzinfo is None:
        raise ValueError("a timestamp without a zone")
    ts_ms = round(moment.timestamp() * 1000)
    return AuditRow(
        parsed.seq,
        parsed.id,
        ts_ms,
        parsed.event,
        parsed.project_id,
        parsed.request_id,
        _ENCODER.encode(parsed.data).decode(),
        parsed.prev_hash,
        parsed.hash,
    )


def _summary(rows: int, complete: bool, digest: str) -> str:
    return f"1 {rows} {'complete' if complete else 'selected'} {digest}"
