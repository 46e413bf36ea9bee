"""The tables as they are now. How they came to be is in `store.migrations`."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
)

# SQLite gives its fast integer key only to a column of type INTEGER.
BIG = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()

schema_versions = Table(
    "kaged_schema",
    metadata,
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
    Column("applied_at_ms", BIG, nullable=False),
)

projects = Table(
    "projects",
    metadata,
    Column("id", String(64), primary_key=True),
    Column("root", Text, nullable=False, unique=True),
    Column("slug", String(200), nullable=False),
    Column("name", Text, nullable=False),
    Column("trusted", Boolean, nullable=False),
    Column("trusted_at_ms", BIG),
    Column("created_at_ms", BIG, nullable=False),
    Column("loaded_at_ms", BIG),
)

audit_events = Table(
    "audit_events",
    metadata,
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("id", String(26), nullable=False),
    Column("ts_ms", BIG, nullable=False),
    Column("name", String(100), nullable=False),
    Column("project_id", String(120)),
    Column("request_id", String(120)),
    Column("data", Text, nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
)
Index("audit_events_name", audit_events.c.name, audit_events.c.seq)
Index("audit_events_time", audit_events.c.ts_ms)
# Partial on SQLite only: naming the other dialect here would load all of it at every start.
Index(
    "audit_events_project",
    audit_events.c.project_id,
    audit_events.c.seq,
    sqlite_where=audit_events.c.project_id.is_not(None),
)
Index(
    "audit_events_request",
    audit_events.c.request_id,
    sqlite_where=audit_events.c.request_id.is_not(None),
)

audit_anchor = Table(
    "audit_anchor",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("seq", BIG, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("ts_ms", BIG, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("mac", String(64), nullable=False),
)

plugin_names = Table(
    "kaged_plugin_names",
    metadata,
    Column("physical", Text, primary_key=True),  # in lower case: names differ by more than case
    Column("plugin", String(64), nullable=False),
    Column("plain", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_at_ms", BIG, nullable=False),
)
Index("kaged_plugin_names_plugin", plugin_names.c.plugin)

plugin_usage = Table(
    "kaged_plugin_usage",
    metadata,
    Column("plugin", String(64), primary_key=True),
    Column("bytes", BIG, nullable=False),
)

__all__ = [
    "BIG",
    "audit_anchor",
    "audit_events",
    "metadata",
    "plugin_names",
    "plugin_usage",
    "projects",
    "schema_versions",
]
