"""The tables as they are now; `store.migrations` creates them and brings old ones here."""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Index,
    Integer,
    LargeBinary,
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

# What a project works on. Columns that end in `_at` are whole Unix seconds, as agents see them.
sessions = Table(
    "sessions",
    metadata,
    Column("id", String(120), primary_key=True),
    Column("project_id", String(64), nullable=False),
    Column("kind", String(16), nullable=False),
    Column("status", String(16), nullable=False),
    Column("detail", Text),
    Column("bound_issue", String(26)),
    Column("created_at_ms", BIG, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
    Column("title", Text),
    Column("model", Text),
    Column("operator_id", Text),
    Column("parent_session", String(120)),  # where it was forked from, as people see it
    Column("parent_entry", String(26)),
    Column("base_session", String(120)),  # whose entries it shares: the owner of `parent_entry`
    Column("base_position", BIG),  # up to and including this one
    Column("depth", Integer, nullable=False),  # how many sessions it shares entries of
    Column("head_entry", String(26)),  # its last entry; null before the header
    Column("head_position", BIG, nullable=False),  # -1 before the header, which is 0
    Column("deleted_at_ms", BIG),  # gone for everybody; kept while forks share its entries
)
Index("sessions_project", sessions.c.project_id, sessions.c.created_at_ms)
Index(
    "sessions_base",
    sessions.c.base_session,
    sqlite_where=sessions.c.base_session.is_not(None),
)

issues = Table(
    "issues",
    metadata,
    Column("seq", BIG, primary_key=True),  # what the full-text index points to
    Column("id", String(26), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("number", BIG, nullable=False),
    Column("title", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("original_body", Text),
    Column("status", String(16), nullable=False),
    Column("assignment", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at", BIG, nullable=False),
    Column("updated_at", BIG, nullable=False),
    Column("resolved_at", BIG),
    Column("resolved_by", Text),
    Column("touched", BIG, nullable=False),  # counts changes of the project: the last is on top
)
Index("issues_id", issues.c.id, unique=True)
Index("issues_number", issues.c.project_id, issues.c.number, unique=True)
Index("issues_touched", issues.c.project_id, issues.c.touched)

issue_updates = Table(
    "issue_updates",
    metadata,
    Column("seq", BIG, primary_key=True),
    Column("id", String(26), nullable=False),
    Column("issue_id", String(26), nullable=False),
    Column("author", Text, nullable=False),
    Column("kind", String(24), nullable=False),
    Column("body", Text),
    Column("metadata", Text),
    Column("visibility", String(16), nullable=False),
    Column("created_at", BIG, nullable=False),
)
Index("issue_updates_id", issue_updates.c.id, unique=True)
Index("issue_updates_issue", issue_updates.c.issue_id, issue_updates.c.seq)

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
    Column("notes", Text, nullable=False),  # a JSON array of texts
    Column("origin_agent", Text, nullable=False),
    Column("created_at", BIG, nullable=False),
    Column("updated_at", BIG, nullable=False),
    Column("completed_at", BIG),
)
Index("issue_todos_issue", issue_todos.c.issue_id, issue_todos.c.position)
Index(
    "issue_todos_started",
    issue_todos.c.issue_id,
    unique=True,  # at most one is in progress, whoever writes
    sqlite_where=issue_todos.c.status == "in_progress",
)

workflow_runs = Table(
    "workflow_runs",
    metadata,
    Column("run_id", String(26), primary_key=True),  # the id of its session, too
    Column("project_id", String(64), nullable=False),
    Column("workflow_name", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("inputs", Text, nullable=False),
    Column("invoker_type", String(16), nullable=False),
    Column("invoker_id", Text, nullable=False),
    Column("timeout_seconds", Integer, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("completed_at_ms", BIG),
    Column("error", Text),
    Column("result", Text),
)
Index("workflow_runs_project", workflow_runs.c.project_id, workflow_runs.c.run_id)
Index(
    "workflow_runs_running",
    workflow_runs.c.run_id,
    sqlite_where=workflow_runs.c.status == "running",
)

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
    Column("created_at_ms", BIG, nullable=False),
    Column("answered_at_ms", BIG),
    Column("delivered_at_ms", BIG),
)
Index("interactions_project", interactions.c.project_id, interactions.c.created_at_ms)
Index(
    "interactions_pending",
    interactions.c.session_id,
    unique=True,  # one question at a time per session
    sqlite_where=interactions.c.status == "pending",
)

# The sessions. An entry is never changed: what a compaction took out of the window is
# marked beside it, so that a fork from before still sees it.
entries = Table(
    "entries",
    metadata,
    Column("seq", BIG, primary_key=True),  # what the full-text index points to
    Column("session_id", String(120), nullable=False),
    Column("position", BIG, nullable=False),
    Column("id", String(26), nullable=False),
    Column("kind", String(32), nullable=False),
    Column("role", String(16)),
    Column("agent", Text, nullable=False),
    Column("run_id", String(120)),
    Column("ts_ms", BIG, nullable=False),
    Column("content", Text, nullable=False),
)
Index("entries_position", entries.c.session_id, entries.c.position, unique=True)
Index("entries_id", entries.c.session_id, entries.c.id, unique=True)

entry_marks = Table(
    "entry_marks",
    metadata,
    Column("session_id", String(120), primary_key=True),
    Column("entry_id", String(26), primary_key=True),
    Column("superseded_by", String(26), nullable=False),
    Column("position", BIG, nullable=False),  # of the compaction
)

current_sessions = Table(
    "current_sessions",
    metadata,
    Column("project_id", String(64), primary_key=True),
    Column("session_id", String(120), nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
)

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
    Column("usage", Text, nullable=False),  # a JSON object
    Column("error", Text),  # a JSON object
    Column("started_at_ms", BIG, nullable=False),
    Column("ended_at_ms", BIG),
)
Index("agent_runs_session", agent_runs.c.session_id, agent_runs.c.started_at_ms)
Index(
    "agent_runs_active",
    agent_runs.c.session_id,
    unique=True,  # one run at a time per session
    sqlite_where=agent_runs.c.status == "running",
)

tool_calls = Table(
    "tool_calls",
    metadata,
    Column("seq", BIG, primary_key=True),
    Column("request_id", String(120), nullable=False),
    Column("session_id", String(120), nullable=False),
    Column("run_id", String(120), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("caller", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("params", Text, nullable=False),  # as the audit trail has them: without secrets
    Column("status", String(16), nullable=False),
    Column("result", Text),
    Column("error", Text),
    Column("started_at_ms", BIG, nullable=False),
    Column("finished_at_ms", BIG),
)
Index("tool_calls_session", tool_calls.c.session_id, tool_calls.c.seq)
Index("tool_calls_request", tool_calls.c.request_id)
Index(
    "tool_calls_running",
    tool_calls.c.seq,
    sqlite_where=tool_calls.c.status == "running",
)

service_accounts = Table(
    "service_accounts",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("account_ref", String(128), primary_key=True),
    Column("account_name", Text),
    Column("account_email", Text),
    Column("created_at_ms", BIG, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
)

service_flows = Table(
    "service_flows",
    metadata,
    Column("flow_id", String(80), primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("capability_id", String(140), nullable=False),
    Column("account_hint", Text),
    Column("flow_type", String(32), nullable=False),
    Column("auth_url", Text, nullable=False),
    Column("user_code", Text),
    Column("poll_interval_s", Integer),
    Column("sealed", LargeBinary, nullable=False),  # what only the host may know, encrypted
    Column("failures", Integer, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
)
Index("service_flows_user", service_flows.c.user_id, service_flows.c.expires_at_ms)
Index("service_flows_expiry", service_flows.c.expires_at_ms)

service_state = Table(
    "service_state",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("chat_id", Text, primary_key=True),  # empty: not of one chat
    Column("name", String(128), primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
)

service_calls = Table(
    "service_calls",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("operation", String(128), primary_key=True),
    Column("account_ref", String(128), primary_key=True),  # empty: without an account
    Column("key", String(300), primary_key=True),
    Column("fingerprint", String(64), nullable=False),
    Column("status", String(16), nullable=False),
    Column("request_id", String(64), nullable=False),
    Column("output", Text),
    Column("error_code", String(64)),
    Column("error_message", Text),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
)
Index("service_calls_expiry", service_calls.c.expires_at_ms)

service_plans = Table(
    "service_plans",
    metadata,
    Column("plan_id", String(64), primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("capability_id", String(140), nullable=False),
    Column("operation", String(128), nullable=False),
    Column("account_ref", String(128), nullable=False),
    Column("input_hash", String(64), nullable=False),
    Column("thread_id", Text),
    Column("summary", Text, nullable=False),
    Column("status", String(16), nullable=False),
    Column("decided_by", Text),
    Column("created_at_ms", BIG, nullable=False),
    Column("decided_at_ms", BIG),
    Column("expires_at_ms", BIG, nullable=False),
)
Index("service_plans_user", service_plans.c.user_id, service_plans.c.status)
Index("service_plans_expiry", service_plans.c.expires_at_ms)

service_vault = Table(
    "service_vault",
    metadata,
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("account_ref", String(128), primary_key=True),
    Column("version", Integer, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("sealed", LargeBinary, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG),
)
