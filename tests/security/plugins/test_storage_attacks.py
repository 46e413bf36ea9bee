"""Every known way to other people's tables is closed, twice: by the rewriter and by the guard."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from fakes.storage_arena import StorageArena
from kaged.plugins.storage import StorageQuota
from kaged.plugins.storage.names import PluginSchema
from requirements import requirement
from security.plugins.storage_attacks import ATTACKS, DENIED, HARMLESS, Attack, V
from security.plugins.storage_stage import fooled, leaks, settled, untouched

HASTY = {"attacker": StorageQuota(read_time_s=0.05, write_time_s=0.05)}
together = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def standing(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[StorageArena]:
    """Yield an arena for all attacks that change nothing, which each of them shows."""
    made = await settled(tmp_path_factory.mktemp("standing"))
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="module")
async def arena(standing: StorageArena) -> StorageArena:
    """Return the shared arena with a broker of its own and no denials yet."""
    standing.broker = await standing.reopened()
    await standing.audit.flush()
    standing.rows.clear()
    return standing


@pytest_asyncio.fixture(loop_scope="module")
async def fresh(tmp_path: Path) -> AsyncIterator[StorageArena]:
    """Yield an arena for one test, which may leave it as it likes."""
    made = await settled(tmp_path)
    yield made
    await made.close()


def params(attack: Attack) -> dict[str, Any]:
    return {"sql": attack.sql, "params": list(attack.values)}


@together
@requirement("PH-STOR-04", "PH-STOR-05", "PH-AUD-20")
@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.name.replace(" ", "-"))
async def test_the_attack_fails(arena: StorageArena, attack: Attack) -> None:
    before = untouched(arena)
    answer = await arena.ask("attacker", attack.method, params(attack))
    assert "error" in answer, answer
    assert answer["error"]["code"] == attack.code, answer
    assert leaks(answer) == []
    assert "plugin_attacker_" not in json.dumps(answer)
    denied = await arena.denied()
    assert len(denied) == (1 if attack.code == DENIED else 0), denied
    for event in denied:
        assert event["name"] == "attacker"
        assert "sql" in event
    assert untouched(arena) == before
    rows = await arena.query("attacker", "SELECT body FROM notes")
    assert rows == [{"body": "own"}]  # and the plugin goes on


def test_there_are_enough_attacks() -> None:
    names = [attack.name for attack in ATTACKS]
    statements = {attack.sql for attack in ATTACKS}
    assert len(statements) == len(ATTACKS) >= 120
    assert len([one for one in ATTACKS if one.code == DENIED]) >= 100
    assert len(set(names)) >= len(names) - 3  # a few ways exist for reading and for writing


@together
@pytest.mark.parametrize("sql", HARMLESS)
async def test_what_only_looks_like_an_attack_works_on_own_rows(
    arena: StorageArena, sql: str
) -> None:
    answer = await arena.ask("attacker", "query", {"sql": sql})
    assert "result" in answer, answer
    assert leaks(answer) == []
    assert await arena.denied() == []


@together
@requirement("PH-AUD-35")
async def test_literals_and_bound_values_of_a_denied_statement_are_not_kept(
    arena: StorageArena,
) -> None:
    literal, bound, quoted = "sk-literal-4711", "sk-bound-4712", "sk-quoted-4713"
    sql = (
        f"SELECT '{literal}', 4714, x'4715', \"{quoted}\" /* sk-comment-4716 */ "
        f"FROM {V} WHERE token = ? -- sk-line-4717"
    )
    answer = await arena.ask("attacker", "query", {"sql": sql, "params": [bound]})
    assert answer["error"]["code"] == DENIED
    for table in (f'"{quoted}".x', f"main.[{quoted}]"):
        await arena.ask("attacker", "query", {"sql": f"SELECT * FROM {table}"})
    events = await arena.denied()
    assert len(events) == 3
    kept = json.dumps(events)
    for number in range(4711, 4718):
        assert str(number) not in kept
    assert "FROM plugin_victim_secrets" in events[0]["sql"]


# -- with the rewriter out of the way ------------------------------------------------------------


MEETS_THE_GUARD = [
    f"SELECT * FROM {V}",
    f'SELECT * FROM "{V}"',
    "SELECT * FROM PLUGIN_VICTIM_SECRETS",
    f"SELECT count(*) FROM {V}",
    f"SELECT 1 FROM {V}",
    f"SELECT rowid FROM {V}",
    f"SELECT * FROM plugin_attacker_notes, {V}",
    f"SELECT (SELECT token FROM {V})",
    f"SELECT 1 IN {V}",
    f"SELECT * FROM main.{V}",
    f"WITH x AS (SELECT * FROM {V}) SELECT * FROM x",
    f"SELECT body FROM plugin_attacker_notes UNION SELECT token FROM {V}",
    "SELECT * FROM plugin_attacker_x_y",
    "SELECT * FROM projects",
    "SELECT count(*) FROM projects",
    "SELECT root FROM main.projects",
    "SELECT * FROM audit_events",
    "SELECT * FROM kaged_plugin_names",
    "SELECT * FROM sqlite_master",
    "SELECT name FROM main.sqlite_schema",
    "SELECT count(*) FROM sqlite_master",
    "SELECT * FROM sqlite_temp_master",
    "SELECT * FROM pragma_table_list",
    "SELECT * FROM pragma_table_info('projects')",
    "SELECT * FROM pragma_database_list",
    "SELECT * FROM dbstat",
    "SELECT * FROM sqlite_stmt",
    "SELECT load_extension('x')",
    "SELECT fts3_tokenizer('simple')",
    "SELECT json_patch('{}', '{}')",
    f"INSERT INTO {V} (token) VALUES ('x')",
    f"UPDATE {V} SET token = 'x'",
    f"DELETE FROM {V}",
    "DELETE FROM projects",
    "DELETE FROM kaged_plugin_names",
    f"INSERT INTO plugin_attacker_notes (body) SELECT token FROM {V}",
    f"UPDATE plugin_attacker_notes SET body = (SELECT token FROM {V})",
    f"DELETE FROM plugin_attacker_notes WHERE body IN (SELECT token FROM {V})",
    f"INSERT INTO plugin_attacker_notes (body) VALUES ('x') RETURNING (SELECT token FROM {V})",
    "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 2, 'x')",
    "DELETE FROM sqlite_sequence",
    f"CREATE TABLE plugin_attacker_new AS SELECT * FROM {V}",
    "CREATE TABLE plugin_attacker_new AS SELECT sql FROM sqlite_master",
    "CREATE TABLE plugin_attacker_new AS SELECT rowid AS r FROM sqlite_master",
    "CREATE TABLE plugin_attacker_new AS SELECT * FROM projects",
    "CREATE TABLE plugin_attacker_new (a REFERENCES projects (id))",
    f"CREATE TABLE plugin_attacker_new (a REFERENCES {V} (id))",
    "CREATE TABLE plugin_victim_new (a)",
    "CREATE TABLE new_host_table (a)",
    "CREATE TABLE plugin_attacker_x_y (a)",
    "CREATE TABLE IF NOT EXISTS plugin_attacker_x_y (a)",
    "CREATE TEMP TABLE plugin_attacker_new (a)",
    "CREATE VIEW plugin_attacker_new AS SELECT * FROM projects",
    "CREATE TEMP VIEW plugin_attacker_new AS SELECT * FROM projects",
    (
        "CREATE TRIGGER plugin_attacker_new AFTER INSERT ON plugin_attacker_notes "
        "BEGIN DELETE FROM projects; END"
    ),
    "CREATE TRIGGER plugin_attacker_new AFTER INSERT ON projects BEGIN SELECT 1; END",
    "CREATE VIRTUAL TABLE plugin_attacker_new USING fts5(a)",
    "CREATE VIRTUAL TABLE plugin_attacker_new USING dbstat(main)",
    f"CREATE INDEX plugin_attacker_new ON {V} (token)",
    "CREATE INDEX plugin_attacker_new ON projects (root)",
    "CREATE INDEX plugin_victim_new ON plugin_attacker_notes (body)",
    f"DROP TABLE {V}",
    "DROP TABLE projects",
    "DROP INDEX plugin_victim_by_token",
    "DROP INDEX audit_events_name",
    "DROP TRIGGER audit_events_no_update",
    f"ALTER TABLE {V} ADD COLUMN x",
    f"ALTER TABLE {V} RENAME TO plugin_attacker_new",
    "ALTER TABLE projects RENAME COLUMN root TO x",
    "ALTER TABLE plugin_attacker_notes RENAME TO plugin_victim_new",
    "ALTER TABLE plugin_attacker_notes RENAME TO new_host_table",
    "ALTER TABLE plugin_attacker_notes RENAME TO plugin_attacker_x_y",
    "ALTER TABLE plugin_attacker_notes ADD COLUMN p REFERENCES projects (id)",
    "ATTACH ':memory:' AS x",
    "DETACH main",
    "PRAGMA writable_schema = ON",
    "PRAGMA table_info(projects)",
    "PRAGMA foreign_keys = OFF",
    "ANALYZE",
    "REINDEX",
    "BEGIN",
    "COMMIT",
    "ROLLBACK",
    "SAVEPOINT x",
]


@together
@requirement("PH-STOR-16")
@pytest.mark.parametrize("sql", MEETS_THE_GUARD)
async def test_the_guard_alone_denies_what_fooled_the_rewriter(
    arena: StorageArena, sql: str
) -> None:
    """The rewriter is off and claims everything; only SQLite's own questions are left."""
    arena.broker = await arena.reopened(None, fooled)
    before = untouched(arena)
    reads = fooled(PluginSchema.of("attacker"), sql).reads_only
    answer = await arena.ask("attacker", "query" if reads else "exec", {"sql": sql})
    assert answer["error"]["code"] == DENIED, answer
    assert leaks(answer) == []
    assert len(await arena.denied()) == 1
    assert untouched(arena) == before
    assert await arena.query("attacker", "SELECT body FROM plugin_attacker_notes") == [
        {"body": "own"}
    ]


@together
@pytest.mark.parametrize(
    "sql", ["UPDATE sqlite_master SET sql = ''", "VACUUM", "VACUUM INTO 'PLACE'"]
)
async def test_sqlite_itself_refuses_some_before_it_asks(
    arena: StorageArena, tmp_path: Path, sql: str
) -> None:
    place = tmp_path / "evil.db"
    arena.broker = await arena.reopened(None, fooled)
    before = untouched(arena)
    for method in ("query", "exec"):
        answer = await arena.ask("attacker", method, {"sql": sql.replace("PLACE", str(place))})
        assert answer["error"]["code"] in {-32000, -32602, -32003}
    assert untouched(arena) == before
    assert not place.exists()


@together
async def test_without_the_rewriter_no_attack_gives_anything_away(fresh: StorageArena) -> None:
    arena = fresh
    arena.broker = await arena.reopened(None, fooled)
    before = untouched(arena)
    for attack in ATTACKS:
        answer = await arena.ask("attacker", attack.method, params(attack))
        assert leaks(answer) == [], (attack, answer)
    after = untouched(arena)
    assert after["tables"].keys() == before["tables"].keys()
    for name, rows in before["tables"].items():
        if not name.startswith("kaged_plugin_"):
            assert after["tables"][name] == rows


@together
async def test_a_statement_of_one_plugin_is_checked_again_for_another(arena: StorageArena) -> None:
    """The driver keeps compiled statements by their text; nobody inherits another's."""
    arena.broker = await arena.reopened(None, fooled)
    for plugin, expected in (("victim", True), ("attacker", False), ("victim", True)):
        answer = await arena.ask(plugin, "query", {"sql": f"SELECT token FROM {V}"})
        assert ("result" in answer) is expected
        answer = await arena.ask(plugin, "exec", {"sql": f"UPDATE {V} SET token = token"})
        assert ("result" in answer) is expected


# -- floods and bombs ----------------------------------------------------------------------------

_N = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)"
READ_BOMBS = [
    f"{_N} SELECT count(*) FROM n",
    f"{_N} SELECT i FROM n ORDER BY random()",
    f"{_N}, m(b) AS (SELECT randomblob(500000) FROM n) SELECT b FROM m ORDER BY b",
    f"{_N} SELECT DISTINCT randomblob(100000) FROM n",
    f"{_N} SELECT group_concat(i) FROM n",
    f"{_N} SELECT zeroblob(1000000) FROM n",
    ("SELECT count(*) FROM notes a, notes b, notes c, notes d, "
     f"({_N} SELECT i FROM n) e, ({_N} SELECT i FROM n) f"),
    "SELECT zeroblob(1000000000)",
    "SELECT randomblob(2000000000)",
    "SELECT printf('%.*c', 500000000, 'x')",
    "SELECT hex(hex(hex(hex(zeroblob(900000)))))",
    "SELECT replace(hex(zeroblob(400000)), '0', hex(zeroblob(400000)))",
    "SELECT instr(zeroblob(1000000), zeroblob(500000) || x'01')",
    "SELECT length(trim(hex(zeroblob(400000)), hex(randomblob(400000))))",
    f"SELECT '{'a' * 300}' LIKE '{'%a' * 200}b'",
    "SELECT " + " || ".join(["'x'"] * 5000),
    "SELECT 1 WHERE " + " OR ".join(["1=0"] * 5000),
    "SELECT " + ", ".join(["1"] * 5000),
    " UNION ALL ".join(["SELECT 1"] * 2000),
    "SELECT max(" + ", ".join(["1"] * 1000) + ")",
    "SELECT * FROM " + ", ".join(f"notes n{i}" for i in range(70)),
    "SELECT CASE " + "WHEN 0 THEN 1 " * 15000 + "END",
    "SELECT " + "CASE WHEN 1 THEN " * 300 + "1" + " END" * 300,
    "SELECT " + "~" * 30000 + "1",
    "SELECT json_array(" + "json_array(" * 70 + ")" * 70 + ")",
]  # fmt: skip
WRITE_BOMBS = [
    f"{_N} INSERT INTO notes (body) SELECT 'x' FROM n",
    f"{_N} INSERT INTO notes (body) SELECT zeroblob(900000) FROM n",
    f"{_N} UPDATE notes SET body = (SELECT max(i) FROM n)",
    f"{_N} DELETE FROM notes WHERE id IN (SELECT -i FROM n)",
    "CREATE TABLE t (" + ", ".join(f"c{i}" for i in range(3000)) + ")",
    f"CREATE TABLE t AS {_N} SELECT i FROM n",
    "INSERT INTO notes (body) VALUES " + ", ".join(["('x')"] * 8000),
]  # fmt: skip


async def thrown(arena: StorageArena, method: str, sql: str) -> None:
    """Throw a bomb; it has to end with an answer, and nobody may notice it."""
    arena.broker = await arena.reopened(HASTY)
    answer = await arena.ask("attacker", method, {"sql": sql})
    assert "result" in answer or answer["error"]["code"] in {-32000, -32602, -32003}, answer
    assert await arena.query("victim", "SELECT count(*) AS n FROM secrets") == [{"n": 1}]
    await arena.exec("victim", "UPDATE secrets SET id = id")
    arena.broker = await arena.reopened()
    await arena.query("attacker", "SELECT count(*) FROM notes")


@together
@pytest.mark.parametrize("sql", READ_BOMBS, ids=range(len(READ_BOMBS)))
async def test_a_query_that_is_a_bomb_ends_with_an_answer_and_takes_nobody_along(
    arena: StorageArena, sql: str
) -> None:
    await thrown(arena, "query", sql)


@together
@pytest.mark.parametrize("sql", WRITE_BOMBS, ids=range(len(WRITE_BOMBS)))
async def test_a_change_that_is_a_bomb_ends_with_an_answer_and_takes_nobody_along(
    fresh: StorageArena, sql: str
) -> None:
    await thrown(fresh, "exec", sql)
