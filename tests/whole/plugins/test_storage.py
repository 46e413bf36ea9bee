"""A plugin's tables in the daemon's database: its own, under plain names, and nobody else's."""

from __future__ import annotations

import base64
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from requirements.marker import whole
from whole.harness.daemon import Daemon, exactly
from whole.harness.plugin_relay import Relay

READ, WRITE = "kaged:storage:read", "kaged:storage:write"
AT_ONCE = 60  # a plugin may have 64 requests open
DENIED, INVALID, FAILED = -32003, -32602, -32000
Relays = Callable[..., Relay]


@pytest.fixture(scope="module")
def relays(daemon: Daemon, module_path: Path) -> Relays:
    """Return a maker of running relays that this module's tests share, one for each name."""
    made: dict[str, Relay] = {}

    def make(name: str, *capabilities: str) -> Relay:
        if name not in made:
            made[name] = Relay(daemon, module_path, name, *(capabilities or (WRITE,)))
        return made[name]

    return make


@pytest.fixture
def store(relays: Relays) -> Relay:
    """Return a plugin that may write, with one table of presets as it was at first."""
    one = relays("oh-my-pi")
    one.ask("kaged.storage.exec", sql="DROP TABLE IF EXISTS presets")
    one.exec("CREATE TABLE presets (id INTEGER PRIMARY KEY, name TEXT UNIQUE, tone TEXT)")
    one.exec("INSERT INTO presets VALUES (1, 'warm', 'low'), (2, 'cold', 'high')")
    return one


def inside(daemon: Daemon) -> sqlite3.Connection:
    """Return the daemon's database, as any program on the machine may look at it."""
    return sqlite3.connect(f"file:{daemon.home / 'kaged.db'}?mode=ro", uri=True)


def names_inside(daemon: Daemon) -> set[str]:
    """Return the names of the database's tables."""
    with inside(daemon) as database:
        rows = database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall()
    return {row[0] for row in rows}


@whole("PH-STOR-02", "PH-STOR-09", "PH-STOR-03")
def test_a_plugin_makes_its_own_tables_and_never_sees_their_real_names(
    daemon: Daemon, relays: Relays, store: Relay
) -> None:
    fresh = relays("fresh-one")
    assert fresh.tables() == []
    assert not any(name.startswith("plugin_fresh_one_") for name in names_inside(daemon))
    assert "plugin_oh_my_pi_presets" in names_inside(daemon)
    assert store.tables() == ["presets"]
    got = store.ask("kaged.storage.query", sql="SELECT * FROM presets ORDER BY id")
    assert got["result"]["columns"] == ["id", "name", "tone"]
    assert got["result"]["rows"][0] == {"id": 1, "name": "warm", "tone": "low"}
    for sql in (
        "SELECT * FROM missing",
        "SELECT nothing FROM presets",
        "INSERT INTO presets VALUES (3, 'warm', 'x')",
        "SELECT presets.id FROM presets, presets",
        "ALTER TABLE presets ADD COLUMN name TEXT",
        "CREATE TABLE presets (a)",
    ):
        method = "query" if sql.startswith("SELECT") else "exec"
        answer = store.ask(f"kaged.storage.{method}", sql=sql)
        assert "plugin_" not in str(answer), (sql, answer)
    assert "plugin_" not in str(store.ask("kaged.storage.schema"))


@whole("PH-STOR-01")
def test_the_database_is_not_in_the_cage(daemon: Daemon, store: Relay) -> None:
    seen = store.folder.call("relay.files", below=str(daemon.home))["files"]
    assert any(one.endswith("/main.py") for one in seen)
    assert not any("kaged.db" in one for one in seen), seen
    assert not any(
        "kaged.db" in one for one in store.folder.call("relay.files", below="/tmp")["files"]
    )


@whole("PH-STOR-04", "PH-STOR-07", "PH-AUD-20", "PH-AUD-35")
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM plugin_neighbour_secrets",
        "SELECT * FROM presets WHERE id IN (SELECT id FROM plugin_neighbour_secrets)",
        "SELECT (SELECT word FROM plugin_neighbour_secrets) FROM presets",
        "SELECT * FROM main.plugin_neighbour_secrets",
        'SELECT * FROM "PLUGIN_NEIGHBOUR_SECRETS"',
        "WITH x AS (SELECT * FROM plugin_neighbour_secrets) SELECT * FROM x",
    ],
)
def test_another_plugins_table_is_out_of_reach_in_any_place(
    relays: Relays, store: Relay, sql: str
) -> None:
    other = relays("neighbour")
    other.ask("kaged.storage.exec", sql="CREATE TABLE IF NOT EXISTS secrets (id, word)")
    other.exec("INSERT INTO secrets VALUES (1, 'treasure')")
    before = len(store.folder.audit("plugin.storage_denied"))
    pid = store.folder.state()["pid"]
    error = store.refused(sql, method="query")
    assert error["code"] == DENIED
    assert "treasure" not in str(error)
    (row,) = exactly(before + 1, lambda: store.folder.audit("plugin.storage_denied"))[before:]
    assert row["data"]["name"] == store.name
    assert row["data"]["sql"]
    assert (store.folder.state()["state"], store.folder.state()["pid"]) == ("running", pid)


@whole("PH-AUD-35", "PH-AUD-20")
def test_a_denied_statement_is_on_record_without_its_values(store: Relay) -> None:
    secret = "tr0ub4dor"
    store.refused(
        f"UPDATE plugin_neighbour_secrets SET word = '{secret}' WHERE id = 77123 -- {secret}"
    )
    store.refused("SELECT * FROM plugin_neighbour_secrets WHERE word = ?", secret, method="query")
    rows = store.folder.audit("plugin.storage_denied")[-2:]
    assert len(rows) == 2
    for word in (secret, "77123"):
        assert word not in str(rows)
    assert "UPDATE" in rows[0]["data"]["sql"]
    assert "SELECT" in rows[1]["data"]["sql"]


@whole("PH-STOR-05", "PH-AMB-30")
@pytest.mark.parametrize(
    ("sql", "method"),
    [
        ("SELECT * FROM sqlite_master", "query"),
        ("SELECT * FROM SQLITE_SCHEMA", "query"),
        ("SELECT * FROM main.sqlite_master", "query"),
        ("SELECT * FROM temp.sqlite_temp_master", "query"),
        ("SELECT * FROM pragma_table_info('presets')", "query"),
        ("PRAGMA table_info(presets)", "exec"),
        ("ATTACH DATABASE ':memory:' AS x", "exec"),
        ("DETACH DATABASE main", "exec"),
        ("CREATE TEMP TABLE t (a)", "exec"),
        ("CREATE TABLE temp.t (a)", "exec"),
        ("CREATE TABLE other.t (a)", "exec"),
        ("CREATE VIEW v AS SELECT * FROM presets", "exec"),
        ("CREATE TRIGGER t AFTER INSERT ON presets BEGIN SELECT 1; END", "exec"),
        ("CREATE VIRTUAL TABLE t USING fts5(a)", "exec"),
        ("VACUUM", "exec"),
        ("VACUUM INTO '/tmp/x'", "exec"),
        ("SELECT load_extension('x')", "query"),
        ("SELECT * FROM [plugin_neighbour_secrets]", "query"),
        ("SELECT * FROM `plugin_neighbour_secrets`", "query"),
        ("SELECT * FROM presets JOIN/**/plugin_neighbour_secrets", "query"),
        ("SELECT sql FROM dbstat", "query"),
    ],
)
def test_what_is_outside_the_plugins_tables_is_refused(store: Relay, sql: str, method: str) -> None:
    assert store.refused(sql, method=method)["code"] in (
        (DENIED,) if "dbstat" not in sql else (DENIED, FAILED)
    )
    assert store.query("SELECT count(*) AS n FROM presets") == [{"n": 2}]


@whole("PH-STOR-04", "PH-STOR-05")
def test_no_table_of_the_daemon_is_within_reach(daemon: Daemon, store: Relay) -> None:
    own = [one for one in names_inside(daemon) if not one.startswith(("plugin_", "sqlite_"))]
    assert len(own) > 5, own
    asked = [f"SELECT * FROM {prefix}{name}" for name in own for prefix in ("", "main.")]
    got: list[Any] = []
    for at in range(0, len(asked), AT_ONCE):
        part = asked[at : at + AT_ONCE]
        got += store.together(*(("kaged.storage.query", {"sql": sql}) for sql in part))
    for sql, answer in zip(asked, got, strict=True):
        # A plain name that the host does not know is one of the plugin's own that is not there.
        right = (DENIED,) if "main." in sql else (DENIED, FAILED)
        assert answer["error"]["code"] in right, (sql, answer)


@whole("PH-STOR-06", "PH-STOR-07", "PH-AMB-30")
@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        ("SELECT name FROM presets WHERE id = 1", [{"name": "warm"}]),
        ('SELECT "name" FROM "presets" WHERE id = 1', [{"name": "warm"}]),
        ("SELECT [name] FROM [presets] WHERE id = 1", [{"name": "warm"}]),
        ("SELECT `name` FROM `presets` WHERE id = 1", [{"name": "warm"}]),
        ("SELECT p.name FROM presets AS p WHERE p.id = 1", [{"name": "warm"}]),
        ("SELECT presets.name FROM presets WHERE presets.id = 1", [{"name": "warm"}]),
        (
            "SELECT a.name AS x, b.name AS y FROM presets a JOIN presets b ON b.id = a.id + 1",
            [{"x": "warm", "y": "cold"}],
        ),
        ("SELECT name FROM presets WHERE id = (SELECT max(id) FROM presets)", [{"name": "cold"}]),
        ("WITH top AS (SELECT * FROM presets) SELECT count(*) AS n FROM top", [{"n": 2}]),
        ("SELECT 'presets' AS name", [{"name": "presets"}]),
    ],
)
def test_own_tables_are_read_in_every_ordinary_form(
    store: Relay, sql: str, rows: list[dict[str, Any]]
) -> None:
    assert store.query(sql) == rows


@whole("PH-STOR-06")
def test_own_tables_are_changed_in_every_ordinary_form(daemon: Daemon, store: Relay) -> None:
    for name in ("shelf", "boxes"):
        store.ask("kaged.storage.exec", sql=f"DROP TABLE IF EXISTS {name}")
    store.exec("CREATE TABLE shelf (id INTEGER, kind TEXT)")
    assert store.exec("INSERT INTO shelf VALUES (1, 'a'), (2, 'b'), (3, 'b')") == 3
    assert store.exec("INSERT INTO shelf SELECT id + 10, name FROM presets") == 2
    assert store.exec("UPDATE shelf SET kind = 'c' WHERE kind = 'b'") == 2
    assert store.exec('DELETE FROM "shelf" WHERE id = 1') == 1
    store.exec("CREATE INDEX by_kind ON shelf (kind)")
    store.exec("ALTER TABLE shelf ADD COLUMN note TEXT")
    store.exec("ALTER TABLE shelf RENAME TO boxes")
    assert sorted(store.tables()) == ["boxes", "presets"]
    assert "plugin_oh_my_pi_boxes" in names_inside(daemon)
    assert store.query("SELECT count(*) AS n FROM boxes WHERE kind = 'c' AND note IS NULL") == [
        {"n": 2}
    ]
    store.exec("DROP INDEX by_kind")
    store.exec("DROP TABLE boxes")
    assert store.tables() == ["presets"]
    assert "plugin_oh_my_pi_boxes" not in names_inside(daemon)


@whole("PH-STOR-08", "PH-STOR-12", "PH-AMB-29")
def test_reading_is_not_writing(relays: Relays, store: Relay) -> None:
    reader = relays("only-reader", READ)
    for sql in ("CREATE TABLE t (a)", "ALTER TABLE t ADD COLUMN b", "DROP TABLE t"):
        assert reader.refused(sql)["code"] == DENIED
    assert reader.ask("kaged.storage.begin")["error"]["code"] == DENIED
    assert reader.refused("INSERT INTO t VALUES (1)", method="query")["code"] == DENIED
    assert reader.query("SELECT 1 AS one") == [{"one": 1}]
    assert reader.tables() == []
    for sql in ("INSERT INTO presets VALUES (9, 'x', 'y')", "DELETE FROM presets",
                "WITH x AS (SELECT 9) INSERT INTO presets SELECT 9, 'x', 'y'",
                "CREATE TABLE t (a)"):  # fmt: skip
        assert store.refused(sql, method="query")["code"] == INVALID
    assert store.query("SELECT count(*) AS n FROM presets") == [{"n": 2}]


@whole("PH-STOR-10", "PH-STOR-11")
def test_each_statement_is_a_transaction_of_its_own(store: Relay) -> None:
    failed = store.refused("INSERT INTO presets VALUES (3, 'new', 'x'), (4, 'warm', 'y')")
    assert failed["code"] == FAILED
    assert store.query("SELECT id FROM presets ORDER BY id") == [{"id": 1}, {"id": 2}]
    for sql in (
        "BEGIN",
        "BEGIN IMMEDIATE",
        "COMMIT",
        "END",
        "ROLLBACK",
        "SAVEPOINT a",
        "RELEASE a",
        "INSERT INTO presets VALUES (5, 'e', 'x'); INSERT INTO presets VALUES (6, 'f', 'x')",
        "SELECT 1; DELETE FROM presets",
    ):
        assert store.refused(sql)["code"] == INVALID, sql
    assert store.query("SELECT id FROM presets ORDER BY id") == [{"id": 1}, {"id": 2}]


@whole("PH-STOR-13", "PH-STOR-18")
def test_values_are_bound_and_come_back_as_what_they_were(store: Relay) -> None:
    attack = "x'); DROP TABLE presets; --"
    store.exec("INSERT INTO presets (name, tone) VALUES (?, ?)", attack, None)
    assert store.query("SELECT tone FROM presets WHERE name = ?", attack) == [{"tone": None}]
    assert store.query("SELECT count(*) AS n FROM presets") == [{"n": 3}]
    for value, shown in (
        (None, None), (True, 1), (False, 0), (7, 7), (-(2**63), -(2**63)), (2.5, 2.5), ("é", "é"),
    ):  # fmt: skip
        assert store.query("SELECT ? AS v", value) == [{"v": shown}]
    for value in ([1], {"a": 1}, 2**63, -(2**63) - 1):
        assert store.refused("SELECT ? AS v", value, method="query")["code"] == INVALID
    (blob,) = store.query("SELECT x'00ff10' AS v")
    assert base64.b64decode(blob["v"]) == b"\x00\xff\x10"
    for sql in ("SELECT :a AS v", "SELECT ? AS v, ? AS w"):
        assert store.refused(sql, 1, method="query")["code"] == INVALID


@whole("PH-STOR-18", "PH-BEY-08")
def test_an_answer_that_is_too_long_is_an_error_and_not_a_broken_line(store: Relay) -> None:
    count = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT {})"
    sql = count + " SELECT {} AS t FROM n"
    error = store.refused(sql.format(10, "hex(zeroblob(262144))"), method="query")
    assert (error["code"], error["data"]["limit"]) == (FAILED, "result_bytes")
    error = store.refused(sql.format(20000, "i"), method="query")
    assert (error["code"], error["data"]["limit"]) == (FAILED, "rows")
    assert error["data"]["value"] == 10000
    assert store.folder.state()["state"] == "running"
    assert len(store.query(sql.format(10000, "i"))) == 10000


@whole("PH-STOR-17")
def test_broken_sql_is_an_answer_and_harms_nobody(daemon: Daemon, store: Relay) -> None:
    for sql in ("SELEC 1", "", "SELECT", "SELECT (", "INSERT INTO", "\0", "'", "SELECT 1 FROM"):
        for method in ("exec", "query"):
            error = store.refused(sql, method=method)
            assert error["code"] in (INVALID, FAILED, DENIED), (sql, error)
            assert error["message"]
    assert daemon.get("/status")
    assert store.query("SELECT 1 AS one") == [{"one": 1}]


@whole("PH-STOR-15", "PH-AMB-29")
def test_without_the_capability_there_is_no_storage(relays: Relays, store: Relay) -> None:
    poor = relays("poor-one", "net:[]")
    for method, params in (
        ("exec", {"sql": "CREATE TABLE t (a)"}),
        ("query", {"sql": "SELECT 1"}),
        ("schema", {}),
        ("begin", {}),
        ("commit", {"transaction": "txn_1"}),
        ("rollback", {"transaction": "txn_1"}),
    ):
        assert poor.ask(f"kaged.storage.{method}", **params)["error"]["code"] == DENIED, method
    told = poor.folder.call("relay.files", below="/none")["told"]
    assert told["storage_available"] is False
    assert store.folder.call("relay.files", below="/none")["told"]["storage_available"] is True
    assert poor.folder.state()["state"] == "running"


@whole("PH-STOR-14", "PH-AMB-31")
def test_names_that_overlap_are_told_apart_and_uninstalling_drops_only_ones_own(
    daemon: Daemon, relays: Relays
) -> None:
    foo, bar = relays("foo"), relays("foo-bar")
    bar.exec("CREATE TABLE x (a)")
    bar.exec("INSERT INTO x VALUES (1)")
    assert foo.refused("CREATE TABLE bar_x (a)")["code"] == DENIED
    assert foo.refused("SELECT * FROM bar_x", method="query")["code"] == DENIED
    foo.exec("CREATE TABLE own (a)")
    foo.exec("CREATE TABLE more (a)")
    daemon.ask("DELETE", "/plugins/foo")
    left = names_inside(daemon)
    assert "plugin_foo_bar_x" in left
    assert not {"plugin_foo_own", "plugin_foo_more"} & left
    assert bar.query("SELECT a FROM x") == [{"a": 1}]
    rows = [row for row in daemon.audit("plugin.uninstalled") if row["data"]["name"] == "foo"]
    assert len(rows) == 1
    told = str(rows[0]["data"])
    assert "own" in told
    assert "more" in told
    assert "bar_x" not in told


@whole("PH-STOR-14", "PH-STOR-09")
def test_after_an_uninstall_and_a_restart_a_plugin_of_that_name_begins_with_nothing(
    own: Callable[..., Daemon], tmp_path: Path
) -> None:
    daemon = own()
    daemon.start()
    first = Relay(daemon, tmp_path, "again", WRITE)
    for name in ("one", "two"):
        first.exec(f"CREATE TABLE {name} (a)")
        first.exec(f"CREATE INDEX by_{name} ON {name} (a)")
    assert first.tables() == ["one", "two"]
    daemon.ask("DELETE", "/plugins/again")
    daemon.restart()
    second = Relay(daemon, tmp_path, "again", WRITE)
    assert second.tables() == []
    second.exec("CREATE TABLE two (b)")
    second.exec("CREATE INDEX by_two ON two (b)")
    assert second.tables() == ["two"]
    assert second.query("SELECT * FROM two") == []


@whole("PH-BEY-05")
def test_statements_of_a_transaction_are_made_together_or_not_at_all(store: Relay) -> None:
    def begin() -> str:
        return str(store.ask("kaged.storage.begin")["result"]["transaction"])

    def add(transaction: str, sql: str) -> dict[str, Any]:
        return store.ask("kaged.storage.exec", sql=sql, transaction=transaction)

    count = "SELECT count(*) AS n FROM presets"
    one = begin()
    assert store.ask("kaged.storage.begin")["error"], "one at a time"
    assert add(one, "INSERT INTO presets VALUES (3, 'c', 'x')")["result"]["queued"] == 1
    add(one, "INSERT INTO presets VALUES (4, 'd', 'x')")
    assert store.query(count) == [{"n": 2}], "nothing is made before the commit"
    done = store.ask("kaged.storage.commit", transaction=one)["result"]
    assert done == {"rows_affected": 2, "statements": [1, 1]}
    assert store.query(count) == [{"n": 4}]
    two = begin()
    add(two, "INSERT INTO presets VALUES (5, 'e', 'x')")
    add(two, "INSERT INTO presets VALUES (6, 'warm', 'x')")
    error = store.ask("kaged.storage.commit", transaction=two)["error"]
    assert (error["code"], error["data"]["statement"]) == (FAILED, 1)
    three = begin()
    add(three, "DELETE FROM presets")
    assert store.ask("kaged.storage.rollback", transaction=three)["result"] == {}
    assert "error" in store.ask("kaged.storage.commit", transaction=three)
    assert store.query(count) == [{"n": 4}]
    four = begin()
    add(four, "DELETE FROM presets")
    store.folder.daemon.post(f"/plugins/{store.name}/restart")
    assert store.query(count) == [{"n": 4}]
    assert "error" in store.ask("kaged.storage.commit", transaction=four)


@whole("PH-BEY-13")
def test_an_export_reads_back_as_equal_rows(daemon: Daemon, store: Relay, tmp_path: Path) -> None:
    store.exec("INSERT INTO presets VALUES (3, 'it''s; --', NULL)")
    target = tmp_path / "out.sql"
    out = daemon.cli("plugin", "export", store.name, str(target)).out
    assert "3 rows of 1 table" in out
    again = sqlite3.connect(":memory:")
    again.executescript(target.read_text(encoding="utf-8"))
    assert again.execute("SELECT id, name, tone FROM presets ORDER BY id").fetchall() == [
        (1, "warm", "low"),
        (2, "cold", "high"),
        (3, "it's; --", None),
    ]
    again.close()
    before = target.read_bytes()
    assert daemon.cli("plugin", "export", store.name, str(target), code=None).code != 0
    assert target.read_bytes() == before
