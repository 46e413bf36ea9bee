"""`AuditRow`: one event as it is kept, with its place in the chain."""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from kaged.base import JsonObject, iso_utc

TS_MAX_MS = 253_402_300_799_999  # the last millisecond that ISO 8601 writes with four year digits

UNREADABLE_LIMIT_CHARS = 200


class AuditRow(NamedTuple):
    """One event as it is kept.

    A named tuple and not a dataclass, because twenty thousand of them are made each second and
    handed to the database as they are. `seq` is the order of the log; `ts_ms` is what the clock
    said and may jump. `data_json` is the exact text that `hash` covers.
    """

    seq: int
    id: str
    ts_ms: int
    name: str
    project_id: str | None
    request_id: str | None
    data_json: str
    prev_hash: str
    hash: str

    @property
    def data(self) -> JsonObject:
        """The event's fields; a row that was tampered with may have none that can be read."""
        try:
            return msgspec.json.decode(self.data_json, type=dict[str, Any])
        except msgspec.DecodeError:
            return {"unreadable": self.data_json[:UNREADABLE_LIMIT_CHARS]}

    def to_json(self) -> JsonObject:
        """Return the row as people and programs outside see it, with an ISO 8601 timestamp."""
        return {
            "seq": self.seq,
            "id": self.id,
            "timestamp": iso_utc(self.ts_ms),
            "event": self.name,
            "project_id": self.project_id,
            "request_id": self.request_id,
            "data": self.data,
            "prev_hash": self.prev_hash,
            "hash": self.hash,
        }
