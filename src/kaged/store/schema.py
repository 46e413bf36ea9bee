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
    text,
)
from sqlalchemy.schema import SchemaItem

# SQLite gives its fast integer key only to a column of type INTEGER.
BIG = BigInteger().with_variant(Integer, "sqlite")

metadata = MetaData()


def _table(name: str, *parts: SchemaItem) -> Table:
    return Table(name, metadata, *parts)


def _index(name: str, *columns: str, unique: bool = False, where: str | None = None) -> Index:
    # Partial on SQLite only: naming the other dialect here would load all of it at every start.
    partial = None if where is None else text(where)
    return Index(name, *columns, unique=unique, sqlite_where=partial)


schema_versions = _table(
    "kaged_schema",
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("name", String(100), nullable=False),
    Column("applied_at_ms", BIG, nullable=False),
)

projects = _table(
    "projects",
    Column("id", String(64), primary_key=True),
    Column("root", Text, nullable=False, unique=True),
    Column("slug", String(200), nullable=False),
    Column("name", Text, nullable=False),
    Column("trusted", Boolean, nullable=False),
    Column("trusted_at_ms", BIG),
    Column("created_at_ms", BIG, nullable=False),
    Column("loaded_at_ms", BIG),
    Column("trusted_by", String(200)),
    Column("agreed", Text),
)

audit_events = _table(
    "audit_events",
    Column("seq", BIG, primary_key=True, autoincrement=False),
    Column("id", String(26), nullable=False),
    Column("ts_ms", BIG, nullable=False),
    Column("name", String(100), nullable=False),
    Column("project_id", String(120)),
    Column("request_id", String(120)),
    Column("data", Text, nullable=False),
    Column("prev_hash", String(64), nullable=False),
    Column("hash", String(64), nullable=False),
    _index("audit_events_name", "name", "seq"),
    _index("audit_events_time", "ts_ms"),
    _index("audit_events_project", "project_id", "seq", where="project_id IS NOT NULL"),
    _index("audit_events_request", "request_id", where="request_id IS NOT NULL"),
)

audit_anchor = _table(
    "audit_anchor",
    Column("id", Integer, primary_key=True, autoincrement=False),  # always 1
    Column("seq", BIG, nullable=False),
    Column("hash", String(64), nullable=False),
    Column("ts_ms", BIG, nullable=False),
    Column("key_id", String(16), nullable=False),
    Column("mac", String(64), nullable=False),
)

plugin_names = _table(
    "kaged_plugin_names",
    Column("physical", Text, primary_key=True),  # in lower case: names differ by more than case
    Column("plugin", String(64), nullable=False),
    Column("plain", Text, nullable=False),
    Column("kind", String(16), nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    _index("kaged_plugin_names_plugin", "plugin"),
)

plugin_usage = _table(
    "kaged_plugin_usage",
    Column("plugin", String(64), primary_key=True),
    Column("bytes", BIG, nullable=False),
)

# What a project works on. Columns that end in `_at` are whole Unix seconds, as agents see them.
sessions = _table(
    "sessions",
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
    Column("owner", Text),  # null: the operator
    Column("chat_id", Text),  # where its owner began it
    Column("audience", String(16), nullable=False),
    _index("sessions_project", "project_id", "created_at_ms"),
    _index("sessions_base", "base_session", where="base_session IS NOT NULL"),
)

issues = _table(
    "issues",
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
    _index("issues_id", "id", unique=True),
    _index("issues_number", "project_id", "number", unique=True),
    _index("issues_touched", "project_id", "touched"),
)

issue_updates = _table(
    "issue_updates",
    Column("seq", BIG, primary_key=True),
    Column("id", String(26), nullable=False),
    Column("issue_id", String(26), nullable=False),
    Column("author", Text, nullable=False),
    Column("kind", String(24), nullable=False),
    Column("body", Text),
    Column("metadata", Text),
    Column("visibility", String(16), nullable=False),
    Column("created_at", BIG, nullable=False),
    _index("issue_updates_id", "id", unique=True),
    _index("issue_updates_issue", "issue_id", "seq"),
)

issue_todos = _table(
    "issue_todos",
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
    _index("issue_todos_issue", "issue_id", "position"),
    # At most one is in progress, whoever writes
    _index("issue_todos_started", "issue_id", unique=True, where="status = 'in_progress'"),
)

workflow_runs = _table(
    "workflow_runs",
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
    _index("workflow_runs_project", "project_id", "run_id"),
    _index("workflow_runs_running", "run_id", where="status = 'running'"),
)

# What waits for a person, of every kind.
inbox_requests = _table(
    "inbox_requests",
    Column("id", String(120), primary_key=True),
    Column("kind", String(24), nullable=False),
    Column("title", Text, nullable=False),
    Column("details", Text, nullable=False),  # a JSON list
    Column("choices", Text, nullable=False),  # a JSON list
    Column("answer_schema", Text),  # a JSON object
    Column("subject", Text, nullable=False),  # a JSON object: the facts of the kind
    Column("owner", Text),  # null: the operator
    Column("project_id", String(64)),
    Column("chat_id", String(200)),
    Column("slot", Text),  # one request waits in it at a time
    Column("digest", String(64), nullable=False),
    Column("state", String(16), nullable=False),
    Column("answer", Text),  # a JSON object
    Column("answered_by", Text),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG),
    Column("answered_at_ms", BIG),
    Column("taken_at_ms", BIG),  # when the asker got the answer
    Column("asked_in", Text),  # the chat of a person's that may answer; null: any of theirs
    _index("inbox_requests_project", "project_id", "created_at_ms"),
    _index("inbox_requests_state", "state", "created_at_ms"),
    _index("inbox_requests_chat", "chat_id", "state"),
    _index("inbox_requests_owner", "owner", "kind"),
    _index("inbox_requests_expiry", "expires_at_ms", where="expires_at_ms IS NOT NULL"),
    _index("inbox_requests_slot", "slot", unique=True, where="state = 'pending'"),
)

# The sessions. An entry is never changed: what a compaction took out of the window is
# marked beside it, so that a fork from before still sees it.
entries = _table(
    "entries",
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
    _index("entries_position", "session_id", "position", unique=True),
    _index("entries_id", "session_id", "id", unique=True),
)

entry_marks = _table(
    "entry_marks",
    Column("session_id", String(120), primary_key=True),
    Column("entry_id", String(26), primary_key=True),
    Column("superseded_by", String(26), nullable=False),
    Column("position", BIG, nullable=False),  # of the compaction
)

session_skills = _table(
    "session_skills",
    Column("session_id", String(120), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("position", BIG, primary_key=True),  # where the session stood when it was loaded
    Column("digest", String(64), nullable=False),
    Column("loaded_at_ms", BIG, nullable=False),
)

current_sessions = _table(
    "current_sessions",
    Column("project_id", String(64), primary_key=True),
    Column("session_id", String(120), nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
)

agent_runs = _table(
    "agent_runs",
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
    Column("teams", Text, nullable=False),  # a JSON list: of whoever began it, as they were then
    Column("started_with", Text, nullable=False),  # a JSON object: for whom, by which agent
    Column("started_at_ms", BIG, nullable=False),
    Column("ended_at_ms", BIG),
    _index("agent_runs_session", "session_id", "started_at_ms"),
    # One run at a time per session
    _index("agent_runs_active", "session_id", unique=True, where="status = 'running'"),
)

tool_calls = _table(
    "tool_calls",
    Column("seq", BIG, primary_key=True),
    Column("request_id", String(120), nullable=False),
    Column("session_id", String(120), nullable=False),
    Column("run_id", String(120), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("caller", Text, nullable=False),
    Column("tool_name", Text, nullable=False),
    Column("tool_version", String(64), nullable=False),
    Column("schema_hash", String(16), nullable=False),
    Column("params", Text, nullable=False),  # as the audit trail has them: without secrets
    Column("status", String(16), nullable=False),
    Column("result", Text),
    Column("error", Text),
    Column("started_at_ms", BIG, nullable=False),
    Column("finished_at_ms", BIG),
    _index("tool_calls_session", "session_id", "seq"),
    _index("tool_calls_request", "request_id"),
    _index("tool_calls_running", "seq", where="status = 'running'"),
)

pipeline_traces = _table(
    "pipeline_traces",  # the newest only: older rows make room
    Column("seq", BIG, primary_key=True),
    Column("request_id", String(120), nullable=False),
    Column("person_id", Text),  # who acted; null: the operator, or nobody
    Column("chat_id", Text),
    Column("project_id", String(64)),
    Column("session_id", String(120)),
    Column("at_ms", BIG, nullable=False),
    Column("step", Text, nullable=False),  # a JSON object: names and words, no values
    _index("pipeline_traces_request", "request_id", "seq"),
    _index("pipeline_traces_session", "session_id"),
)

service_accounts = _table(
    "service_accounts",
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("account_ref", String(128), primary_key=True),
    Column("account_name", Text),
    Column("account_email", Text),
    Column("created_at_ms", BIG, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
    Column("status", String(16), nullable=False),
    Column("status_reason", Text),
    Column("status_at_ms", BIG),
)

account_shares = _table(
    "account_shares",
    Column("share_id", String(64), primary_key=True),
    Column("owner", Text, nullable=False),
    Column("capability_id", String(140), nullable=False),
    Column("account_ref", String(128), nullable=False),
    Column("person", Text),
    Column("team", Text),
    Column("operations", Text, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG),
    Column("last_used_at_ms", BIG),
    Column("last_used_by", Text),
    _index("account_shares_owner", "owner", "capability_id", "account_ref"),
    _index("account_shares_person", "person"),
    _index("account_shares_team", "team"),
)

service_account_tokens = _table(
    "service_account_tokens",
    Column("id", String(26), primary_key=True),
    Column("name", String(64), nullable=False, unique=True),
    Column("digest", String(64), nullable=False),
    Column("roles", Text, nullable=False),
    Column("teams", Text, nullable=False),
    Column("projects", Text),
    Column("operations", Text),
    Column("created_by", Text, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
    Column("revoked_at_ms", BIG),
)

invitations = _table(
    "invitations",
    Column("id", String(26), primary_key=True),
    Column("person_id", Text, nullable=False),
    Column("digest", String(64), nullable=False),
    Column("created_by", Text, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
    Column("access_s", Integer, nullable=False),
    Column("used_at_ms", BIG),
    Column("access_digest", String(64)),
    Column("access_expires_at_ms", BIG),
    Column("revoked_at_ms", BIG),
)

service_flows = _table(
    "service_flows",
    Column("flow_id", String(80), primary_key=True),
    Column("user_id", Text, nullable=False),
    Column("capability_id", String(140), nullable=False),
    Column("account_hint", Text),
    Column("flow_type", String(32), nullable=False),
    Column("poll_interval_s", Integer),
    Column("sealed", LargeBinary, nullable=False),  # what only the host may know, encrypted
    Column("failures", Integer, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
    _index("service_flows_user", "user_id", "expires_at_ms"),
    _index("service_flows_expiry", "expires_at_ms"),
)

service_state = _table(
    "service_state",
    Column("user_id", Text, primary_key=True),
    Column("capability_id", String(140), primary_key=True),
    Column("chat_id", Text, primary_key=True),  # empty: not of one chat
    Column("name", String(128), primary_key=True),
    Column("value", Text, nullable=False),
    Column("updated_at_ms", BIG, nullable=False),
)

service_calls = _table(
    "service_calls",
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
    _index("service_calls_expiry", "expires_at_ms"),
)

service_vault = _table(
    "service_vault",
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

sign_ins = _table(
    "sign_ins",
    Column("digest", String(64), primary_key=True),  # of the cookie's value, which is not kept
    Column("issuer", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("provider_session", Text),  # `sid`: which session at the provider
    Column("host", Text, nullable=False),
    Column("claims", Text, nullable=False),  # a JSON object: what decides who it is
    Column("created_at_ms", BIG, nullable=False),
    Column("expires_at_ms", BIG, nullable=False),
    _index("sign_ins_subject", "issuer", "subject"),
    _index("sign_ins_expiry", "expires_at_ms"),
)

sign_outs = _table(
    "sign_outs",  # when the provider said so; tokens that it gave before count no more
    Column("issuer", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("at_ms", BIG, nullable=False),
)

access_grants = _table(
    "access_grants",  # what people let an agent do for the rest of a session
    Column("id", String(32), primary_key=True),
    Column("session_id", String(120), nullable=False),
    Column("project_id", String(64), nullable=False),
    Column("agent", Text, nullable=False),
    Column("owner", Text),  # for whose calls it counts; null: the operator's
    Column("what", Text, nullable=False),  # a JSON object
    Column("granted_by", Text, nullable=False),
    Column("created_at_ms", BIG, nullable=False),
    _index("access_grants_session", "session_id"),
    _index("access_grants_project", "project_id"),
)
