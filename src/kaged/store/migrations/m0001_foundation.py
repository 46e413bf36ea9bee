"""Version 1: the list of projects and the audit chain.

A migration is never edited after a release: it is what old databases went through.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

from kaged.store.backends import DatabaseBackend


def upgrade(conn: Connection, backend: DatabaseBackend) -> None:
    """Create the first tables."""
    big = BigInteger().with_variant(Integer, "sqlite")
    metadata = MetaData()
    Table(
        "projects",
        metadata,
        Column("id", String(64), primary_key=True),
        Column("root", Text, nullable=False, unique=True),
        Column("slug", String(200), nullable=False),
        Column("name", Text, nullable=False),
        Column("trusted", Boolean, nullable=False),
        Column("trusted_at_ms", big),
        Column("created_at_ms", big, nullable=False),
        Column("loaded_at_ms", big),
    )
    events = Table(
        "audit_events",
        metadata,
        Column("seq", big, primary_key=True, autoincrement=False),
        Column("id", String(26), nullable=False),
        Column("ts_ms", big, nullable=False),
        Column("name", String(100), nullable=False),
        Column("project_id", String(120)),
        Column("request_id", String(120)),
        Column("data", Text, nullable=False),
        Column("prev_hash", String(64), nullable=False),
        Column("hash", String(64), nullable=False),
    )
    Index("audit_events_name", events.c.name, events.c.seq)
    Index("audit_events_time", events.c.ts_ms)
    has_project = events.c.project_id.is_not(None)
    has_request = events.c.request_id.is_not(None)
    Index(
        "audit_events_project",
        events.c.project_id,
        events.c.seq,
        sqlite_where=has_project,
    )
    Index(
        "audit_events_request",
        events.c.request_id,
        sqlite_where=has_request,
    )
    Table(
        "audit_anchor",
        metadata,
        Column("id", Integer, primary_key=True, autoincrement=False),
        Column("seq", big, nullable=False),
        Column("hash", String(64), nullable=False),
        Column("ts_ms", big, nullable=False),
        Column("key_id", String(16), nullable=False),
        Column("mac", String(64), nullable=False),
    )
    metadata.create_all(conn, checkfirst=False)
    backend.forbid_changes(conn, "audit_events")
