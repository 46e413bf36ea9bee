"""Version 2: which plugin owns which table, and how much room each plugin takes.

A migration is never edited after a release: it is what old databases went through.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Connection, Index, Integer, MetaData, String, Table, Text

from kaged.store.backends import DatabaseBackend


def upgrade(conn: Connection, backend: DatabaseBackend) -> None:
    """Create the records of the plugins' tables; the tables themselves come from the plugins."""
    del backend  # nothing here differs between databases
    big = BigInteger().with_variant(Integer, "sqlite")
    metadata = MetaData()
    names = Table(
        "kaged_plugin_names",
        metadata,
        Column("physical", Text, primary_key=True),
        Column("plugin", String(64), nullable=False),
        Column("plain", Text, nullable=False),
        Column("kind", String(16), nullable=False),
        Column("created_at_ms", big, nullable=False),
    )
    Index("kaged_plugin_names_plugin", names.c.plugin)
    Table(
        "kaged_plugin_usage",
        metadata,
        Column("plugin", String(64), primary_key=True),
        Column("bytes", big, nullable=False),
    )
    metadata.create_all(conn, checkfirst=False)
