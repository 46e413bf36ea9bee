"""The broker on a real database: what a plugin can do with its own tables."""

from __future__ import annotations

import asyncio
import base64
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from fakes.storage_arena import NONE, READ, WRITE, StorageArena
from fakes.store_home import edited
from kaged.base import ManualClock
from kaged.plugins.storage import StorageQuota
from requirements import requirement

PATIENCE_S = 15.0


@pytest.fixture
async def arena(tmp_path: Path, clock: ManualClock) -> AsyncIterator[StorageArena]:
    """Yield a store with a broker, on a clock that stands still."""
    made = await StorageArena(tmp_path, clock).open()
    yield made
    await made.close()


@pytest.fixture
async def notes(arena: StorageArena) -> StorageArena:
    """Return a plugin `notes` with a table `items` of three rows."""
    await arena.exec("notes", "CREATE TABLE items (id INTEGER PRIMARY KEY, body TEXT, rank REAL)")
    await arena.exec(
        "notes", "INSERT INTO items (body, rank) VALUES ('one', 1.5), ('two', 2.5), ('three', 3.5)"
    )
    return arena


@requirement("PH-STOR-02", "PH-STOR-09")
async def test_a_table_gets_the_plugins_prefix_and_nothing_is_there_before(
    arena: StorageArena,
) -> None:
    assert await arena.tables("oh-my-pi") == []
    before = arena.physical_tables()
    await arena.exec("oh-my-pi", "CREATE TABLE presets (id)")
    assert arena.physical_tables() - before == {"plugin_oh_my_pi_presets"}
    assert await arena.tables("oh-my-pi") == ["presets"]


@requirement("PH-STOR-03")
async def test_the_prefix_shows_nowhere(notes: StorageArena) -> None:
    await notes.exec("notes", "CREATE UNIQUE INDEX bodies ON items (body)")
    statements = [
        ("query", "SELECT * FROM items"),
        ("query", "SELECT items.id + 1, (SELECT count(*) FROM items), i.* FROM items, items i"),
        ("query", "WITH items AS (SELECT * FROM items) SELECT * FROM items"),
        ("query", "SELECT * FROM missing"),
        ("query", "SELECT items.nothing FROM items"),
        ("query", "SELECT * FROM items, items"),
        ("exec", "INSERT INTO items (body) VALUES ('one')"),
        ("exec", "INSERT INTO items (nothing) VALUES (1)"),
        ("exec", "CREATE TABLE items (a)"),
        ("exec", "CREATE TABLE bodies (a)"),
        ("exec", "CREATE INDEX items ON items (id)"),
        ("exec", "ALTER TABLE items DROP COLUMN body"),
        ("exec", "DROP TABLE missing"),
        ("exec", "DROP INDEX missing"),
    ]
    for method, sql in statements:
        answer = await notes.ask("notes", method, {"sql": sql})
        assert "plugin_" not in json.dumps(answer), sql
    assert await notes.tables("notes") == ["items"]


@requirement("PH-STOR-06")
@pytest.mark.parametrize(
    ("statements", "query", "expected"),
    [
        ([], "SELECT body FROM items WHERE id = 2", [{"body": "two"}]),
        (
            ["INSERT INTO items VALUES (9, 'nine', 9)"],
            "SELECT count(*) AS n FROM items",
            [{"n": 4}],
        ),
        (
            ["UPDATE items SET body = 'new' WHERE items.id = 1"],
            "SELECT body FROM items WHERE id = 1",
            [{"body": "new"}],
        ),
        (["DELETE FROM items WHERE id > 1"], "SELECT id FROM items", [{"id": 1}]),
        (["CREATE TABLE IF NOT EXISTS other (a)"], "SELECT * FROM other", []),
        (
            ["CREATE INDEX by_body ON items (body)"],
            "SELECT id FROM items INDEXED BY by_body WHERE body = 'two'",
            [{"id": 2}],
        ),
        (
            ["ALTER TABLE items ADD COLUMN extra TEXT DEFAULT 'x'"],
            "SELECT extra FROM items WHERE id = 1",
            [{"extra": "x"}],
        ),
        (["ALTER TABLE items RENAME TO things"], "SELECT count(*) AS n FROM things", [{"n": 3}]),
        (
            ["ALTER TABLE items RENAME COLUMN body TO text"],
            "SELECT text FROM items WHERE id = 1",
            [{"text": "one"}],
        ),
        (["DROP TABLE items", "CREATE TABLE items (z)"], "SELECT * FROM items", []),
        (
            ["CREATE TABLE tags (item, tag)", "INSERT INTO tags VALUES (1, 'a'), (3, 'b')"],
            "SELECT i.body, tags.tag FROM items AS i JOIN tags ON tags.item = i.id ORDER BY i.id",
            [{"body": "one", "tag": "a"}, {"body": "three", "tag": "b"}],
        ),
        ([], 'SELECT x.id FROM "Items" x WHERE x."body" = \'two\'', [{"id": 2}]),
        ([], "SELECT [items].[id] FROM [items] LIMIT 1", [{"id": 1}]),
        ([], "SELECT id FROM `items` LIMIT 1", [{"id": 1}]),
    ],
)
async def test_straightforward_statements_work(
    notes: StorageArena, statements: list[str], query: str, expected: list[dict[str, Any]]
) -> None:
    for sql in statements:
        await notes.exec("notes", sql)
    assert await notes.query("notes", query) == expected


@requirement("PH-STOR-07", "PH-AMB-30")
async def test_own_subqueries_work_and_foreign_ones_are_denied(notes: StorageArena) -> None:
    await notes.exec("other", "CREATE TABLE secrets (token)")
    own = "SELECT body FROM items WHERE id IN (SELECT max(id) FROM items)"
    assert await notes.query("notes", own) == [{"body": "three"}]
    common = "WITH last AS (SELECT * FROM items ORDER BY id DESC LIMIT 1) SELECT body FROM last"
    assert await notes.query("notes", common) == [{"body": "three"}]
    foreign = "SELECT body FROM items WHERE id IN (SELECT token FROM plugin_other_secrets)"
    assert await notes.code("notes", foreign, method="query") == -32003
    # SQLite reads this one, the syntax tree library does not: refused, and no data.
    odd = "CREATE TABLE wide (a UNSIGNED BIG INT)"
    assert await notes.code("notes", odd) == -32003
    assert await notes.tables("notes") == ["items"]
    # A name that is built when the statement runs.
    assert await notes.code("notes", "SELECT * FROM ?", "items", method="query") != 0


@requirement("PH-CAP-08", "PH-STOR-08", "PH-AMB-29")
async def test_read_capability_reads_and_does_not_write(notes: StorageArena) -> None:
    query = {"sql": "SELECT count(*) AS n FROM items"}
    answer = await notes.ask("notes", "query", query, READ)
    assert answer["result"] == {"rows": [{"n": 3}], "columns": ["n"]}
    assert (await notes.ask("notes", "schema", {}, READ))["result"] == {"tables": ["items"]}
    for sql in ("DELETE FROM items", "CREATE TABLE more (a)", "ALTER TABLE items ADD COLUMN z"):
        for method in ("exec", "query"):
            answer = await notes.ask("notes", method, {"sql": sql}, READ)
            assert answer["error"]["code"] == -32003, (method, sql)
    for method in ("begin", "commit", "rollback"):
        assert (await notes.ask("notes", method, {}, READ))["error"]["code"] == -32003
    assert (await notes.ask("notes", "query", query))["result"]["rows"] == [{"n": 3}]


@requirement("PH-CAP-09")
async def test_write_capability_alone_reads_too(notes: StorageArena) -> None:
    assert [item.text for item in WRITE] == ["kaged:storage:write"]
    answer = await notes.ask("notes", "query", {"sql": "SELECT id FROM items LIMIT 1"}, WRITE)
    assert answer["result"]["rows"] == [{"id": 1}]
    assert (await notes.ask("notes", "schema", {}, WRITE))["result"] == {"tables": ["items"]}


async def test_without_a_capability_every_method_is_denied(notes: StorageArena) -> None:
    statement = {"sql": "SELECT 1"}
    for method in ("exec", "query", "schema", "begin", "commit", "rollback"):
        answer = await notes.ask("notes", method, statement, NONE)
        assert answer["error"]["code"] == -32003, method
    assert len(await notes.denied()) == 6


@requirement("PH-STOR-10")
async def test_a_statement_that_fails_in_the_middle_leaves_nothing(notes: StorageArena) -> None:
    for words in ("INSERT", "INSERT OR FAIL", "INSERT OR ROLLBACK", "INSERT OR ABORT"):
        sql = f"{words} INTO items (id, body) VALUES (10, 'a'), (11, 'b'), (1, 'clash')"
        assert await notes.code("notes", sql) == -32000
    assert await notes.query("notes", "SELECT count(*) AS n FROM items") == [{"n": 3}]
    await notes.exec("notes", "INSERT INTO items (body) VALUES ('goes on')")


NOT_ONE_STATEMENT = [
    "BEGIN",
    "BEGIN IMMEDIATE",
    "COMMIT",
    "END",
    "ROLLBACK",
    "SAVEPOINT a",
    "RELEASE a",
    "DELETE FROM items; DELETE FROM items",
    "INSERT INTO items (body) VALUES ('x'); SELECT 1",
    "SELECT 1; DROP TABLE items",
]


@requirement("PH-STOR-11")
async def test_transactions_in_sql_and_several_statements_are_rejected(notes: StorageArena) -> None:
    for sql in NOT_ONE_STATEMENT:
        assert await notes.code("notes", sql) == -32602, sql
        assert await notes.code("notes", sql, method="query") == -32602, sql
        assert await notes.query("notes", "SELECT count(*) AS n FROM items") == [{"n": 3}]


@requirement("PH-STOR-12")
async def test_query_takes_nothing_but_a_select(notes: StorageArena) -> None:
    statements = (
        "INSERT INTO items (body) VALUES ('x')",
        "INSERT INTO items (body) VALUES ('x') RETURNING id",
        "WITH x AS (SELECT 1) DELETE FROM items",
        "UPDATE items SET body = 'x'",
        "DROP TABLE items",
        "CREATE TABLE more (a)",
    )
    for sql in statements:
        assert await notes.code("notes", sql, method="query") == -32602, sql
        answer = await notes.ask("notes", "query", {"sql": sql}, READ)
        assert answer["error"]["code"] == -32003, sql
    assert await notes.query("notes", "SELECT body FROM items WHERE id = 1") == [{"body": "one"}]
    assert await notes.query("notes", "WITH x AS (SELECT 7 AS n) SELECT n FROM x") == [{"n": 7}]
    assert await notes.tables("notes") == ["items"]


async def test_exec_takes_no_select(notes: StorageArena) -> None:
    assert await notes.code("notes", "SELECT * FROM items") == -32602


@requirement("PH-STOR-13")
async def test_values_are_bound_and_never_part_of_the_statement(notes: StorageArena) -> None:
    evil = "'); DROP TABLE items; --"
    await notes.exec("notes", "INSERT INTO items (id, body) VALUES (?, ?)", 50, evil)
    rows = await notes.query("notes", "SELECT id FROM items WHERE body = ?", evil)
    assert rows == [{"id": 50}]
    assert await notes.query("notes", "SELECT ?1 AS a, ?1 AS b", "x") == [{"a": "x", "b": "x"}]


BROKEN = [
    "SELEC * FROM items",
    "SELECT * FORM items",
    "SELECT 'open",
    "INSERT INTO",
    "SELECT * FROM items WHERE",
    "SELECT 1 +",
    "\x01\x02",
    "SELECT * FROM items LIMIT 1 2",
    "CREATE TABLE x (a,, b)",
]


@requirement("PH-STOR-17")
async def test_broken_sql_is_an_error_with_a_message(notes: StorageArena) -> None:
    for sql in BROKEN:
        for method in ("query", "exec"):
            answer = await notes.ask("notes", method, {"sql": sql})
            assert answer["error"]["code"] in {-32602, -32000}, sql
            assert answer["error"]["message"]
        assert await notes.query("notes", "SELECT 1 AS fine") == [{"fine": 1}]


@requirement("PH-STOR-18")
async def test_values_come_back_as_they_went_in(notes: StorageArena) -> None:
    await notes.exec("notes", "CREATE TABLE kinds (place INTEGER, value)")
    values: list[Any] = [None, True, False, 5, -(2**63), 2**63 - 1, 1.25, "", "text", "a\0b", "ü🙂"]
    for place, value in enumerate(values):
        await notes.exec("notes", "INSERT INTO kinds VALUES (?, ?)", place, value)
    rows = await notes.query("notes", "SELECT value FROM kinds ORDER BY place")
    assert [row["value"] for row in rows] == [None, 1, 0, *values[3:]]
    for value in ([1], {"a": 1}, 2**63, -(2**63) - 1, 10**40):
        assert await notes.code("notes", "INSERT INTO kinds VALUES (99, ?)", value) == -32602
    assert await notes.code("notes", "INSERT INTO kinds VALUES (99, ?)", "\ud800") == -32602
    blob = await notes.query("notes", "SELECT x'00ff10' AS raw")
    assert base64.b64decode(blob[0]["raw"]) == b"\x00\xff\x10"
    assert await notes.query("notes", "SELECT 9e999 AS far") == [{"far": None}]
    assert await notes.query("notes", "SELECT CAST(x'61ff' AS TEXT) AS odd") == [{"odd": "a\ufffd"}]
    answer = await notes.ask("notes", "query", {"sql": "SELECT ? AS a", "params": []})
    assert answer["error"]["code"] == -32602
    # Six values of nearly a mebibyte are more than a line may hold.
    await notes.exec("notes", "CREATE TABLE large (value)")
    for _ in range(6):
        await notes.exec("notes", "INSERT INTO large VALUES (?)", "x" * 900_000)
    answer = await notes.ask("notes", "query", {"sql": "SELECT value FROM large"})
    assert answer["error"]["code"] == -32000
    assert answer["error"]["data"]["limit"] == "result_bytes"
    assert len(await notes.query("notes", "SELECT value FROM large LIMIT 4")) == 4


@requirement("PH-AMB-31")
async def test_overlapping_prefixes_have_one_owner_per_table(arena: StorageArena) -> None:
    await arena.exec("foo", "CREATE TABLE bar_x (a)")
    await arena.exec("foo", "INSERT INTO bar_x VALUES ('of foo')")
    for sql in (
        "CREATE TABLE x (b)",
        "CREATE TABLE IF NOT EXISTS x (b)",
        "DROP TABLE x",
        "ALTER TABLE x ADD COLUMN b",
        "CREATE INDEX i ON x (a)",
        "INSERT INTO x VALUES (1)",
        "DELETE FROM x",
        "CREATE TABLE x2 (a REFERENCES x (a))",
    ):
        assert await arena.code("foo-bar", sql) == -32003, sql
    assert await arena.code("foo-bar", "SELECT * FROM x", method="query") == -32003
    assert await arena.tables("foo-bar") == []
    await arena.exec("foo-bar", "CREATE TABLE y (b)")
    assert await arena.code("foo", "SELECT * FROM bar_y", method="query") == -32003
    assert await arena.code("foo", "DROP TABLE bar_y") == -32003
    assert await arena.broker.drop("foo") == ["bar_x"]
    assert await arena.tables("foo") == []
    assert await arena.tables("foo-bar") == ["y"]
    assert {name for name in arena.physical_tables() if name.startswith("plugin_")} == {
        "plugin_foo_bar_y"
    }
    await arena.exec("foo-bar", "CREATE TABLE x (b)")  # now it is free


async def test_a_foreign_key_reserves_the_name_it_points_to(arena: StorageArena) -> None:
    await arena.exec("foo", "CREATE TABLE child (p REFERENCES bar_parent (id))")
    assert await arena.code("foo-bar", "CREATE TABLE parent (id)") == -32003
    await arena.exec("foo", "CREATE TABLE bar_parent (id PRIMARY KEY)")
    await arena.exec("foo", "INSERT INTO bar_parent VALUES (1)")
    await arena.exec("foo", "INSERT INTO child VALUES (1)")
    assert await arena.code("foo", "INSERT INTO child VALUES (2)") == -32000
    assert await arena.tables("foo") == ["bar_parent", "child"]


async def test_names_survive_a_restart_and_a_rename(arena: StorageArena) -> None:
    await arena.exec("foo", "CREATE TABLE Old (a UNIQUE)")
    await arena.exec("foo", "CREATE INDEX inner_i ON Old (a)")
    await arena.exec("foo", "ALTER TABLE old RENAME TO New")
    await arena.home.close()
    again = await StorageArena(arena.home.root, arena.clock).open()
    try:
        assert await again.tables("foo") == ["New"]
        await again.exec("foo", "DROP INDEX inner_i")
        await again.exec("foo", "INSERT INTO NEW VALUES (1)")
        assert await again.query("foo", "SELECT * FROM new") == [{"a": 1}]
        assert again.raw("SELECT physical, kind FROM kaged_plugin_names") == [
            ("plugin_foo_new", "table")
        ]
    finally:
        await again.close()


async def test_drop_takes_everything_of_a_plugin_and_nothing_else(notes: StorageArena) -> None:
    await notes.exec("notes", "CREATE TABLE parents (id INTEGER PRIMARY KEY AUTOINCREMENT)")
    await notes.exec("notes", "CREATE TABLE kids (p NOT NULL REFERENCES parents (id))")
    await notes.exec("notes", "INSERT INTO parents DEFAULT VALUES")
    await notes.exec("notes", "INSERT INTO kids VALUES (1)")
    await notes.exec("other", "CREATE TABLE kept (a)")
    assert await notes.broker.used_bytes("notes") > 0
    assert await notes.broker.drop("notes") == ["items", "kids", "parents"]
    assert await notes.broker.drop("notes") == []
    plugin_tables = {name for name in notes.physical_tables() if name.startswith("plugin_")}
    assert plugin_tables == {"plugin_other_kept"}
    assert await notes.tables("notes") == []
    assert await notes.broker.used_bytes("notes") == 0
    await notes.exec("notes", "CREATE TABLE items (fresh)")


@requirement("PH-BEY-05")
async def test_statements_of_a_transaction_come_together_or_not_at_all(
    notes: StorageArena, clock: ManualClock
) -> None:
    async def begin() -> str:
        return (await notes.ask("notes", "begin", {}))["result"]["transaction"]

    async def add(transaction: str, sql: str, *values: Any) -> dict[str, Any]:
        params = {"sql": sql, "params": list(values), "transaction": transaction}
        return await notes.ask("notes", "exec", params)

    async def count() -> int:
        return (await notes.query("notes", "SELECT count(*) AS n FROM items"))[0]["n"]

    insert = "INSERT INTO items (id, body) VALUES (?, 'x')"
    first = await begin()
    assert (await add(first, insert, 10))["result"] == {"rows_affected": 0, "queued": 1}
    assert (await add(first, insert, 11))["result"] == {"rows_affected": 0, "queued": 2}
    assert await count() == 3
    answer = await notes.ask("notes", "commit", {"transaction": first})
    assert answer["result"] == {"rows_affected": 2, "statements": [1, 1]}
    assert await count() == 5

    failing = await begin()
    await add(failing, insert, 20)
    await add(failing, insert, 10)  # is there already
    answer = await notes.ask("notes", "commit", {"transaction": failing})
    assert answer["error"]["code"] == -32000
    assert answer["error"]["data"] == {"kind": "constraint", "statement": 1}
    assert await count() == 5

    taken_back = await begin()
    busy = await notes.ask("notes", "begin", {})
    assert busy["error"]["code"] == -32005  # one per plugin
    assert "result" in await notes.ask("others", "begin", {})
    await add(taken_back, insert, 30)
    assert (await notes.ask("notes", "rollback", {"transaction": taken_back}))["result"] == {}
    assert await count() == 5

    forgotten = await begin()
    await add(forgotten, insert, 40)
    clock.advance(5.1)
    answer = await notes.ask("notes", "commit", {"transaction": forgotten})
    assert answer["error"]["data"] == {"kind": "no_transaction"}
    left = await begin()
    await add(left, insert, 50)
    await notes.broker.plugin_exited("notes")
    answer = await notes.ask("notes", "commit", {"transaction": left})
    assert answer["error"]["code"] == -32000
    assert await count() == 5


async def test_an_open_transaction_holds_up_nobody(notes: StorageArena) -> None:
    """Nothing is locked between begin and commit: the host and everybody else go on writing."""
    begun = (await notes.ask("notes", "begin", {}))["result"]["transaction"]
    held = {"sql": "INSERT INTO items (id) VALUES (60)", "transaction": begun}
    await notes.ask("notes", "exec", held)
    await notes.audit.record(edited("x"), durable=True)
    await notes.exec("notes", "INSERT INTO items (id) VALUES (61)")
    await notes.exec("other", "CREATE TABLE t (a)")
    answer = await notes.ask("notes", "commit", {"transaction": begun})
    assert answer["result"]["rows_affected"] == 1


async def test_a_transaction_may_make_tables_and_use_them(arena: StorageArena) -> None:
    begun = (await arena.ask("notes", "begin", {}))["result"]["transaction"]
    for sql in (
        "CREATE TABLE projects (id)",  # a name that the host has, too
        "CREATE INDEX by_id ON projects (id)",
        "INSERT INTO projects VALUES (1), (2)",
    ):
        answer = await arena.ask("notes", "exec", {"sql": sql, "transaction": begun})
        assert "result" in answer, (sql, answer)
    answer = await arena.ask("notes", "commit", {"transaction": begun})
    assert answer["result"]["statements"] == [0, 0, 2]
    assert await arena.query("notes", "SELECT id FROM projects") == [{"id": 1}, {"id": 2}]


async def test_a_failed_transaction_leaves_no_names_behind(arena: StorageArena) -> None:
    begun = (await arena.ask("foo", "begin", {}))["result"]["transaction"]
    for sql in ("CREATE TABLE bar_x (a)", "INSERT INTO bar_x VALUES (1, 2)"):
        await arena.ask("foo", "exec", {"sql": sql, "transaction": begun})
    assert "error" in await arena.ask("foo", "commit", {"transaction": begun})
    assert await arena.tables("foo") == []
    await arena.exec("foo-bar", "CREATE TABLE x (a)")


NUMBERS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n LIMIT {})"
ENDLESS_WRITE = NUMBERS.format(-1) + " INSERT INTO t SELECT i FROM n WHERE i < 0"


@requirement("PH-BEY-08")
async def test_limits_end_a_request_with_details(tmp_path: Path) -> None:
    small = StorageQuota(database_bytes=256 * 1024, rows=100, result_bytes=50_000)
    hasty = StorageQuota(read_time_s=0.05, write_time_s=0.05)
    arena = await StorageArena(tmp_path).open()
    try:
        for plugin in ("small", "hasty"):
            await arena.exec(plugin, "CREATE TABLE t (a)")
        arena.broker = await arena.reopened({"small": small, "hasty": hasty})
        cases = [
            ("small", "query", NUMBERS.format(101) + " SELECT i FROM n", "rows", 100),
            ("small", "query", NUMBERS.format(60) + " SELECT printf('%.1000c', 'x') FROM n",
             "result_bytes", 50_000),
            ("small", "query", "SELECT zeroblob(2000000)", "value_bytes", 1024 * 1024),
            ("small", "exec", NUMBERS.format(500) + " INSERT INTO t SELECT randomblob(1000) FROM n",
             "database_bytes", 256 * 1024),
            ("hasty", "query", NUMBERS.format(-1) + " SELECT max(i) FROM n", "time_s", 0.05),
            ("hasty", "exec", ENDLESS_WRITE, "time_s", 0.05),
        ]  # fmt: skip
        for plugin, method, sql, limit, value in cases:
            answer = await arena.ask(plugin, method, {"sql": sql})
            assert answer["error"]["code"] == -32000, (sql, answer)
            assert answer["error"]["data"]["limit"] == limit, (sql, answer)
            assert answer["error"]["data"]["value"] == value
        for plugin in ("small", "hasty"):
            assert arena.raw(f"SELECT count(*) FROM plugin_{plugin}_t") == [(0,)]
    finally:
        await arena.close()


async def test_sorting_spills_to_disk_up_to_a_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kaged.store.backends.sqlite_guest.SCRATCH_LIMIT_BYTES", 1_000_000)
    patient = StorageQuota(read_time_s=60.0)
    arena = await StorageArena(tmp_path).open({"notes": patient})
    try:
        sql = NUMBERS.format(-1) + " SELECT i, randomblob(10000) AS b FROM n ORDER BY b"
        answer = await arena.ask("notes", "query", {"sql": sql})
        assert answer["error"]["data"]["limit"] == "scratch_bytes"
        assert await arena.query("notes", "SELECT 1 AS fine") == [{"fine": 1}]
    finally:
        await arena.close()


async def test_room_that_was_freed_can_be_used_again(tmp_path: Path) -> None:
    small = StorageQuota(database_bytes=300 * 1024)
    arena = await StorageArena(tmp_path).open({"notes": small, "others": small})
    try:
        await arena.exec("notes", "CREATE TABLE t (a)")
        fill = NUMBERS.format(200) + " INSERT INTO t SELECT randomblob(1000) FROM n"
        for _ in range(4):
            await arena.exec("notes", fill)
            assert await arena.code("notes", fill) == -32000
            await arena.exec("notes", "DELETE FROM t")
        await arena.exec("others", "CREATE TABLE t (a)")
        await arena.exec("others", fill)  # each plugin has its own room
    finally:
        await arena.close()


async def test_writes_rest_after_one_that_was_too_slow(tmp_path: Path) -> None:
    arena = await StorageArena(tmp_path).open({"slow": StorageQuota(write_time_s=0.3)})
    try:
        await arena.exec("slow", "CREATE TABLE t (a)")
        assert await arena.code("slow", ENDLESS_WRITE) == -32000
        assert await arena.code("slow", "DELETE FROM t") == -32005
        assert await arena.query("slow", "SELECT * FROM t") == []
        await arena.exec("quick", "CREATE TABLE t (a)")
    finally:
        await arena.close()


async def test_a_write_that_is_cut_short_undoes_nobody_elses(tmp_path: Path) -> None:
    """SQLite undoes the whole transaction of an interrupted write; it is the plugin's own."""
    arena = await StorageArena(tmp_path).open({"slow": StorageQuota(write_time_s=0.3)})
    try:
        await arena.exec("slow", "CREATE TABLE t (a)")
        async with asyncio.timeout(PATIENCE_S), asyncio.TaskGroup() as group:
            refused = group.create_task(arena.ask("slow", "exec", {"sql": ENDLESS_WRITE}))
            for number in range(40):
                event = edited(str(number))
                group.create_task(arena.audit.record(event, durable=True))
                group.create_task(arena.exec(f"p{number}", "CREATE TABLE t (a)"))
        assert refused.result()["error"]["data"]["limit"] == "time_s"
        assert arena.raw("SELECT count(*) FROM audit_events WHERE name = 'file.edited'") == [(40,)]
        assert len([name for name in arena.physical_tables() if name.startswith("plugin_p")]) == 40
        assert arena.store.status.last_error is None
    finally:
        await arena.close()


async def test_requests_of_one_plugin_are_served_in_their_order(notes: StorageArena) -> None:
    answers = await asyncio.gather(
        notes.exec("notes", "INSERT INTO items (id) VALUES (100)"),
        notes.query("notes", "SELECT count(*) AS n FROM items"),
        notes.exec("notes", "DELETE FROM items"),
        notes.query("notes", "SELECT count(*) AS n FROM items"),
    )
    assert answers == [1, [{"n": 4}], 4, [{"n": 0}]]


async def test_many_rows_in_one_statement_count(notes: StorageArena) -> None:
    marks = ", ".join(["(?)"] * 500)
    values = [f"row {number}" for number in range(500)]
    assert await notes.exec("notes", f"INSERT INTO items (body) VALUES {marks}", *values) == 500
    assert await notes.exec("notes", "UPDATE items SET rank = 1") == 503
    assert await notes.exec("notes", "WITH x AS (SELECT 1) DELETE FROM items WHERE id > 3") == 500
    upsert = (
        "INSERT INTO items (id, body) VALUES (1, 'new') "
        "ON CONFLICT (id) DO UPDATE SET body = items.body || excluded.body RETURNING items.body"
    )
    assert await notes.exec("notes", upsert) == 1
    assert await notes.query("notes", "SELECT body FROM items WHERE id = 1") == [{"body": "onenew"}]


async def test_an_export_reads_back_as_it_was(notes: StorageArena, tmp_path: Path) -> None:
    statements = [
        "CREATE TABLE parents (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT UNIQUE)",
        (
            "CREATE TABLE kids (p REFERENCES parents (id), v, "
            "plugin_id TEXT DEFAULT 'plugin_notes_x', up AS (upper(v)) STORED)"
        ),
        "CREATE INDEX kids_v ON kids (v) WHERE v IS NOT NULL",
        "CREATE TABLE copied AS SELECT 1 AS a, 'x' AS b",
        "INSERT INTO parents (name) VALUES ('it''s'), ('b'), (NULL)",
        (
            "INSERT INTO kids (p, v) VALUES (1, x'00ff'), (2, 1.1), (3, 9e999), "
            "(1, 'a' || char(0)), (1, -9223372036854775807), (2, 'line' || char(10) || 'ü'), "
            "(2, CAST(x'61ff' AS TEXT))"
        ),
        "ALTER TABLE copied RENAME TO renamed",
    ]
    for sql in statements:
        await notes.exec("notes", sql)
    target = tmp_path / "notes.sql"
    written = await notes.broker.export("notes", target)
    assert (written.tables, written.rows) == (("items", "kids", "parents", "renamed"), 14)
    assert target.stat().st_mode & 0o777 == 0o600
    script = target.read_text(encoding="utf-8")
    assert script.count("plugin_notes_") == 1 + 7  # the default and the values made of it
    other = sqlite3.connect(":memory:")
    try:
        other.text_factory = bytes
        other.executescript(script)
        conn = sqlite3.connect(f"file:{notes.home.database}?mode=ro", uri=True)
        conn.text_factory = bytes
        for table in written.tables:
            ours = conn.execute(f"SELECT * FROM plugin_notes_{table}").fetchall()
            assert other.execute(f"SELECT * FROM {table}").fetchall() == ours
        conn.close()
        assert other.execute("PRAGMA foreign_key_list(kids)").fetchall()[0][2] == b"parents"
    finally:
        other.close()
    with pytest.raises(Exception, match="the file exists"):
        await notes.broker.export("notes", target)
    assert not list(tmp_path.glob(".*.partial"))


async def test_storage_is_not_available_when_the_store_is_closed(notes: StorageArena) -> None:
    assert notes.broker.available("notes")
    await notes.store.close()
    assert not notes.broker.available("notes")
    for method, sql in (("query", "SELECT 1"), ("exec", "DELETE FROM items")):
        answer = await notes.ask("notes", method, {"sql": sql})
        assert answer["error"]["data"] == {"kind": "unavailable"}


async def test_an_unknown_method_is_not_found(arena: StorageArena) -> None:
    assert (await arena.ask("notes", "nothing", {}))["error"]["code"] == -32601
