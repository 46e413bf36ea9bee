"""The stage of attacks on storage: an attacker with its victims, and what to look at afterwards."""

from __future__ import annotations

import json
import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from fakes.storage_arena import StorageArena
from kaged.plugins.storage.names import PluginSchema
from kaged.plugins.storage.statement import Rewritten, StatementKind
from kaged.store.backends.sqlite_guard import Verb, verb_of
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import Claim, GuestStatement, NameKind
from security.plugins.storage_attacks import SECRETS


async def settled(root: Path) -> StorageArena:
    """Put an attacker, its victims and the host's own rows into one database."""
    arena = await StorageArena(root).open()
    await arena.store.projects.upsert(f"/srv/{SECRETS[1]}", "slug", SECRETS[1])
    for sql in (
        "CREATE TABLE secrets (id INTEGER PRIMARY KEY AUTOINCREMENT, token TEXT)",
        "CREATE INDEX by_token ON secrets (token)",
        f"INSERT INTO secrets (token) VALUES ('{SECRETS[0]}')",
    ):
        await arena.exec("victim", sql)
    await arena.exec("attacker-x", "CREATE TABLE y (a)")
    await arena.exec("attacker-x", f"INSERT INTO y VALUES ('{SECRETS[2]}')")
    await arena.exec("attacker", "CREATE TABLE notes (id INTEGER PRIMARY KEY, body TEXT)")
    await arena.exec("attacker", "CREATE TABLE tags (note, tag)")
    await arena.exec("attacker", "INSERT INTO notes (body) VALUES ('own')")
    return arena


def untouched(arena: StorageArena) -> dict[str, Any]:
    """Return everything in the database that is not the attacker's, but for the audit log."""
    own = {f"plugin_attacker_{name}" for name in ("notes", "tags")}
    own |= {"audit_events", "audit_anchor"}
    with closing(sqlite3.connect(f"file:{arena.home.database}?mode=ro", uri=True)) as looking:
        catalog = looking.execute(
            "SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name"
        ).fetchall()
        names = [name for kind, name, *_ in catalog if kind == "table" and name not in own]
        tables = {name: looking.execute(f'SELECT * FROM "{name}"').fetchall() for name in names}
    return {"tables": tables, "catalog": catalog}


def leaks(answer: dict[str, Any]) -> list[str]:
    """Return the secrets that an answer holds."""
    text = json.dumps(answer)
    return [secret for secret in SECRETS if secret in text]


def fooled(schema: PluginSchema, sql: str) -> Rewritten:
    """Let everything through as it is and claim whatever it names: a rewriter that was fooled."""
    verb = verb_of(sql)
    words = re.findall(r"[A-Za-z_][A-Za-z_0-9]*", sql)
    claims: tuple[Claim, ...] = ()
    if verb in {Verb.CREATE, Verb.ALTER}:
        claims = tuple(
            Claim(fold_name(word), word, NameKind.TABLE if verb is Verb.ALTER else kind)
            for word in words
            for kind in (NameKind.TABLE,)
            if fold_name(word).startswith("plugin_attacker")
        )
    first = sql.lstrip("/* ;\n").split(" ", 1)[0].upper()
    kind = StatementKind.SELECT if first in {"SELECT", "WITH", "VALUES"} else StatementKind.INSERT
    names = frozenset(fold_name(word) for word in words)
    return Rewritten(kind, GuestStatement(sql, frozenset(), names, claims))
