"""Version 3: sessions, issues with their updates and todos, workflow runs, interactions.

A migration is never edited after a release: it is what old databases went through.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, Text

from kaged.store.backends import DatabaseBackend


def upgrade(conn: Connection, backend: DatabaseBackend) -> None:
    """Create the tables of the work on projects, and the full-text index of issues."""
    metadata = MetaData()
    _sessions(metadata)
    _issues(metadata)
    _todos(metadata)
    _runs(metadata)
    _interactions(metadata)
    metadata.create_all(conn, checkfirst=False)
    backend.add_text_index(conn, "issues", "seq", ("title", "body"))


def _sessions(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    sessions = Table(
        "sessions",
        metadata,
        Column("id", String(120), primary_key=True),
        Column("project_id", String(64), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("status", String(16), nullable=False),
        Column("detail", Text),
        Column("bound_issue", String(26)),
        Column("created_at_ms", big, nullable=False),
        Column("updated_at_ms", big, nullable=False),
    )
    Index("sessions_project", sessions.c.project_id, sessions.c.created_at_ms)


def _issues(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    issues = Table(
        "issues",
        metadata,
        Column("seq", big, primary_key=True),
        Column("id", String(26), nullable=False),
        Column("project_id", String(64), nullable=False),
        Column("number", big, nullable=False),
        Column("title", Text, nullable=False),
        Column("body", Text, nullable=False),
        Column("original_body", Text),
        Column("status", String(16), nullable=False),
        Column("assignment", Text),
        Column("created_by", Text, nullable=False),
        Column("created_at", big, nullable=False),
        Column("updated_at", big, nullable=False),
        Column("resolved_at", big),
        Column("resolved_by", Text),
        Column("touched", big, nullable=False),
    )
    Index("issues_id", issues.c.id, unique=True)
    Index("issues_number", issues.c.project_id, issues.c.number, unique=True)
    Index("issues_touched", issues.c.project_id, issues.c.touched)
    issue_updates = Table(
        "issue_updates",
        metadata,
        Column("seq", big, primary_key=True),
        Column("id", String(26), nullable=False),
        Column("issue_id", String(26), nullable=False),
        Column("author", Text, nullable=False),
        Column("kind", String(24), nullable=False),
        Column("body", Text),
        Column("metadata", Text),
        Column("visibility", String(16), nullable=False),
        Column("created_at", big, nullable=False),
    )
    Index("issue_updates_id", issue_updates.c.id, unique=True)
    Index("issue_updates_issue", issue_updates.c.issue_id, issue_updates.c.seq)


def _todos(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    issue_todos = Table(
        "issue_todos",
        metadata,
        Column("id", String(26), primary_key=True),
        Column("issue_id", String(26), nullable=False),
        Column("content", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("kind", String(16), nullable=False),
        Column("phase", Text),
        Column("position", Integer, nullable=False),
        Column("notes", Text, nullable=False),
        Column("origin_agent", Text, nullable=False),
        Column("created_at", big, nullable=False),
        Column("updated_at", big, nullable=False),
        Column("completed_at", big),
    )
    Index("issue_todos_issue", issue_todos.c.issue_id, issue_todos.c.position)
    Index(
        "issue_todos_started",
        issue_todos.c.issue_id,
        unique=True,
        sqlite_where=issue_todos.c.status == "in_progress",
    )


def _runs(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    workflow_runs = Table(
        "workflow_runs",
        metadata,
        Column("run_id", String(26), primary_key=True),
        Column("project_id", String(64), nullable=False),
        Column("workflow_name", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("inputs", Text, nullable=False),
        Column("invoker_type", String(16), nullable=False),
        Column("invoker_id", Text, nullable=False),
        Column("timeout_seconds", Integer, nullable=False),
        Column("created_at_ms", big, nullable=False),
        Column("completed_at_ms", big),
        Column("error", Text),
        Column("result", Text),
    )
    Index("workflow_runs_project", workflow_runs.c.project_id, workflow_runs.c.run_id)
    Index(
        "workflow_runs_running",
        workflow_runs.c.run_id,
        sqlite_where=workflow_runs.c.status == "running",
    )


def _interactions(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    interactions = Table(
        "interactions",
        metadata,
        Column("request_id", String(120), primary_key=True),
        Column("project_id", String(64), nullable=False),
        Column("session_id", String(120), nullable=False),
        Column("run_id", String(120), nullable=False),
        Column("caller", Text, nullable=False),
        Column("kind", String(16), nullable=False),
        Column("payload", Text, nullable=False),
        Column("status", String(16), nullable=False),
        Column("answer", Text),
        Column("answered_by", Text),
        Column("created_at_ms", big, nullable=False),
        Column("answered_at_ms", big),
        Column("delivered_at_ms", big),
    )
    Index("interactions_project", interactions.c.project_id, interactions.c.created_at_ms)
    Index(
        "interactions_pending",
        interactions.c.session_id,
        unique=True,
        sqlite_where=interactions.c.status == "pending",
    )
