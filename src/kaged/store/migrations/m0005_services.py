"""Version 5: accounts of people: links, flows, stored state, calls, consents, the vault.

A migration is never edited after a release: it is what old databases went through.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    Text,
)

from kaged.store.backends import DatabaseBackend


def upgrade(conn: Connection, backend: DatabaseBackend) -> None:
    """Create the tables of the service capabilities."""
    del backend
    metadata = MetaData()
    _links(metadata)
    _calls(metadata)
    metadata.create_all(conn, checkfirst=False)


def _links(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
    Table(
        "service_accounts",
        metadata,
        Column("user_id", Text, primary_key=True),
        Column("capability_id", String(140), primary_key=True),
        Column("account_ref", String(128), primary_key=True),
        Column("account_name", Text),
        Column("account_email", Text),
        Column("created_at_ms", big, nullable=False),
        Column("updated_at_ms", big, nullable=False),
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
        Column("created_at_ms", big, nullable=False),
        Column("expires_at_ms", big, nullable=False),
    )
    Index("service_flows_user", service_flows.c.user_id, service_flows.c.expires_at_ms)
    Index("service_flows_expiry", service_flows.c.expires_at_ms)
    Table(
        "service_state",
        metadata,
        Column("user_id", Text, primary_key=True),
        Column("capability_id", String(140), primary_key=True),
        Column("chat_id", Text, primary_key=True),  # empty: not of one chat
        Column("name", String(128), primary_key=True),
        Column("value", Text, nullable=False),
        Column("updated_at_ms", big, nullable=False),
    )
    Table(
        "service_vault",
        metadata,
        Column("user_id", Text, primary_key=True),
        Column("capability_id", String(140), primary_key=True),
        Column("account_ref", String(128), primary_key=True),
        Column("version", Integer, nullable=False),
        Column("key_id", String(16), nullable=False),
        Column("sealed", LargeBinary, nullable=False),
        Column("created_at_ms", big, nullable=False),
        Column("updated_at_ms", big, nullable=False),
        Column("expires_at_ms", big),
    )


def _calls(metadata: MetaData) -> None:
    big = BigInteger().with_variant(Integer, "sqlite")
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
        Column("created_at_ms", big, nullable=False),
        Column("expires_at_ms", big, nullable=False),
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
        Column("created_at_ms", big, nullable=False),
        Column("decided_at_ms", big),
        Column("expires_at_ms", big, nullable=False),
    )
    Index("service_plans_user", service_plans.c.user_id, service_plans.c.status)
    Index("service_plans_expiry", service_plans.c.expires_at_ms)
