"""Version 4: the sessions: entries, forks, marks, runs of agents, tool calls.

A migration is never edited after a release: it is what old databases went through.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)

from kaged.store.backends import DatabaseBackend


def upgrade(conn: Connection, backend: DatabaseBackend) -> None:
    """Let sessions have entries that forks share, and remember runs and tool calls."""
    _sessions(conn)
    metadata = MetaData()
    _entries(metadata)
    _runs(metadata)
    _tool_calls(metadata)
    metadata.create_all(conn, checkfirst=False)
    backend.forbid_updates(conn, "entries")
    backend.add_text_index(conn, "entries", "seq", ("words",), bare=True)


def _sessions(conn: Connection) -> None:
    big = BigInteger().with_variant(Integer, "sqlite").compile(conn.dialect)
    for column in (
        "title TEXT",
        "model TEXT",
        "operator_id TEXT",
        "parent_session VARCHAR(120)",
        "parent_entry VARCHAR(26)",
        "base_session VARCHAR(120)",
        f"base_position {big}",
        "depth INTEGER NOT NULL DEFAULT 0",
        "head_entry VARCHAR(26)",
        f"head_position {big} NOT NULL DEFAULT -1",
        f"deleted_at_ms {big}",
    ):
        conn.exec_driver_sql(f"ALTER TABLE sessions ADD COLUMN {column}")
    sessions = Table("sessions", MetaData(), Column("base_session", String(120)))
    Index(
        "sessions_base", sessions.c.base_session, sqlite_where=text("base_session IS NOT NULL")
    ).create(conn)


def _entries(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    entries = Table(
        "entries",
        metadata,
        Column("seq", big, primary_key=True),
        Column("session_id", String(120), nullable=False),
        Column("position", big, nullable=False),
        Column("id", String(26), nullable=False),
        Column("kind", String(32), nullable=False),
        Column("role", String(16)),
        Column("agent", Text, nullable=False),
        Column("run_id", String(120)),
        Column("ts_ms", big, nullable=False),
        Column("content", Text, nullable=False),
    )
    Index("entries_position", entries.c.session_id, entries.c.position, unique=True)
    Index("entries_id", entries.c.session_id, entries.c.id, unique=True)
    Table(
        "entry_marks",
        metadata,
        Column("session_id", String(120), primary_key=True),
        Column("entry_id", String(26), primary_key=True),
        Column("superseded_by", String(26), nullable=False),
        Column("position", big, nullable=False),
    )
    Table(
        "current_sessions",
        metadata,
        Column("project_id", String(64), primary_key=True),
        Column("session_id", String(120), nullable=False),
        Column("updated_at_ms", big, nullable=False),
    )


def _runs(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    agent_runs = Table(
        "agent_runs",
        metadata,
        Column("id", String(120), primary_key=True),
        Column("session_id", String(120), nullable=False),
        Column("project_id", String(64), nullable=False),
        Column("status", String(16), nullable=False),
        Column("cause", String(16), nullable=False),
        Column("model", Text),
        Column("operator_id", Text),
        Column("steps", Integer, nullable=False),
        Column("usage", Text, nullable=False),
        Column("error", Text),
        Column("started_at_ms", big, nullable=False),
        Column("ended_at_ms", big),
    )
    Index("agent_runs_session", agent_runs.c.session_id, agent_runs.c.started_at_ms)
    Index(
        "agent_runs_active",
        agent_runs.c.session_id,
        unique=True,
        sqlite_where=agent_runs.c.status == "running",
    )


def _tool_calls(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    tool_calls = Table(
        "tool_calls",
        metadata,
        Column("seq", big, primary_key=True),
        Column("request_id", String(120), nullable=False),
        Column("session_id", String(120), nullable=False),
        Column("run_id", String(120), nullable=False),
        Column("project_id", String(64), nullable=False),
        Column("caller", Text, nullable=False),
        Column("tool_name", Text, nullable=False),
        Column("params", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("result", Text),
        Column("error", Text),
        Column("started_at_ms", big, nullable=False),
        Column("finished_at_ms", big),
    )
    Index("tool_calls_session", tool_calls.c.session_id, tool_calls.c.seq)
    Index("tool_calls_request", tool_calls.c.request_id)
    Index(
        "tool_calls_running",
        tool_calls.c.seq,
        sqlite_where=tool_calls.c.status == "running",
    )
