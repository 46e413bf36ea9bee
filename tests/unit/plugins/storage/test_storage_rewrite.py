"""How statements are rewritten: every name, nothing else."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kaged.plugins.storage.names import PluginSchema
from kaged.plugins.storage.rewrite import rewrite
from kaged.plugins.storage.statement import StatementKind
from kaged.store.guest import NameKind
from kaged.wire.errors import InvalidParams, StorageAccessDenied

SCHEMA = PluginSchema.of("oh-my-pi")
P = "plugin_oh_my_pi_"


def rewritten(sql: str) -> str:
    return rewrite(SCHEMA, sql).guest.sql


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("SELECT * FROM presets", f'SELECT * FROM "{P}presets" AS "presets"'),
        ("select a from t x", f'select a from "{P}t" x'),
        ("select a from t as x, u", f'select a from "{P}t" as x, "{P}u" AS "u"'),
        (
            'SELECT t.a FROM [my t] AS t JOIN `U` ON "U".b = t.b',
            f'SELECT t.a FROM "{P}my t" AS t JOIN "{P}U" AS "U" ON "U".b = t.b',
        ),
        (
            "SELECT (SELECT max(b) FROM u) FROM t WHERE a IN (SELECT a FROM v)",
            (
                f'SELECT (SELECT max(b) FROM "{P}u" AS "u") FROM "{P}t" AS "t" '
                f'WHERE a IN (SELECT a FROM "{P}v" AS "v")'
            ),
        ),
        ("SELECT a FROM t WHERE a IN u", f'SELECT a FROM "{P}t" AS "t" WHERE a IN "{P}u"'),
        (
            "WITH c AS (SELECT 1) SELECT * FROM c, t",
            f'WITH "{P}c" AS (SELECT 1) SELECT * FROM "{P}c" AS "c", "{P}t" AS "t"',
        ),
        (
            "SELECT a FROM t UNION SELECT a FROM u ORDER BY 1 -- FROM v",
            f'SELECT a FROM "{P}t" AS "t" UNION SELECT a FROM "{P}u" AS "u" ORDER BY 1 -- FROM v',
        ),
        (
            "SELECT 'FROM t', j.value FROM t, json_each(t.tags) AS j",
            f'SELECT \'FROM t\', j.value FROM "{P}t" AS "t", json_each(t.tags) AS j',
        ),
        (
            "SELECT * FROM t INDEXED BY i WHERE a=1",
            f'SELECT * FROM "{P}t" AS "t" INDEXED BY "{P}i" WHERE a=1',
        ),
        (
            "SELECT * FROM (t JOIN u USING (id))",
            f'SELECT * FROM ("{P}t" AS "t" JOIN "{P}u" AS "u" USING (id))',
        ),
        ("INSERT INTO t VALUES (1)", f'INSERT INTO "{P}t" AS "t" VALUES (1)'),
        ("REPLACE INTO t(a) VALUES (?1)", f'REPLACE INTO "{P}t" AS "t"(a) VALUES (?1)'),
        (
            (
                "INSERT INTO t(a) SELECT a FROM u WHERE true ON CONFLICT(a) "
                "DO UPDATE SET a = t.a + excluded.a RETURNING t.a, (SELECT u.b FROM u)"
            ),
            (
                f'INSERT INTO "{P}t" AS "t"(a) SELECT a FROM "{P}u" AS "u" WHERE true '
                f'ON CONFLICT(a) DO UPDATE SET a = t.a + excluded.a RETURNING "{P}t".a, '
                f'(SELECT u.b FROM "{P}u" AS "u")'
            ),
        ),
        (
            "UPDATE OR IGNORE t SET a = 1 FROM u WHERE u.id = t.id",
            f'UPDATE OR IGNORE "{P}t" AS "t" SET a = 1 FROM "{P}u" AS "u" WHERE u.id = t.id',
        ),
        ("DELETE FROM t WHERE t.a = 1", f'DELETE FROM "{P}t" AS "t" WHERE t.a = 1'),
        (
            (
                "CREATE TABLE IF NOT EXISTS t (a INTEGER PRIMARY KEY, b REFERENCES u(x), "
                "FOREIGN KEY (b) REFERENCES v, CHECK (t.a > 0)) WITHOUT ROWID, STRICT"
            ),
            (
                f'CREATE TABLE IF NOT EXISTS "{P}t" (a INTEGER PRIMARY KEY, '
                f'b REFERENCES "{P}u"(x), FOREIGN KEY (b) REFERENCES "{P}v", '
                f'CHECK ("{P}t".a > 0)) WITHOUT ROWID, STRICT'
            ),
        ),
        (
            "CREATE TABLE t (a UNIQUE ON CONFLICT IGNORE)",
            f'CREATE TABLE "{P}t" (a UNIQUE ON CONFLICT IGNORE)',
        ),
        (
            "CREATE TABLE t AS SELECT * FROM u",
            f'CREATE TABLE "{P}t" AS SELECT * FROM "{P}u" AS "u"',
        ),
        (
            "CREATE UNIQUE INDEX IF NOT EXISTS i ON t(a COLLATE NOCASE) WHERE a > 1",
            f'CREATE UNIQUE INDEX IF NOT EXISTS "{P}i" ON "{P}t"(a COLLATE NOCASE) WHERE a > 1',
        ),
        ("ALTER TABLE t RENAME TO u", f'ALTER TABLE "{P}t" RENAME TO "{P}u"'),
        ("ALTER TABLE t RENAME a TO b", f'ALTER TABLE "{P}t" RENAME a TO b'),
        ("ALTER TABLE t DROP a", f'ALTER TABLE "{P}t" DROP a'),
        (
            "ALTER TABLE t ADD COLUMN c REFERENCES v(a)",
            f'ALTER TABLE "{P}t" ADD COLUMN c REFERENCES "{P}v"(a)',
        ),
        ("DROP TABLE IF EXISTS t;", f'DROP TABLE IF EXISTS "{P}t";'),
        ("DROP INDEX i", f'DROP INDEX "{P}i"'),
        ("SELECT * FROM 't'", f'SELECT * FROM "{P}t" AS "t"'),
        ('SELECT * FROM "a""b"', f'SELECT * FROM "{P}a""b" AS "a""b"'),
        ("SELECT 'ü', a FROM täble", f'SELECT \'ü\', a FROM "{P}täble" AS "täble"'),
    ],
)
def test_names_are_replaced_and_nothing_else(sql: str, expected: str) -> None:
    assert rewritten(sql) == expected


def test_a_statement_says_what_it_makes_and_refers_to() -> None:
    statement = rewrite(SCHEMA, "CREATE TABLE Notes (a REFERENCES People(id), b REFERENCES Notes)")
    assert statement.kind is StatementKind.CREATE_TABLE
    assert {(claim.physical, claim.plain, claim.kind) for claim in statement.guest.claims} == {
        (f"{P}notes", "Notes", NameKind.TABLE),
        (f"{P}people", "People", NameKind.RESERVED),
        (f"{P}notes", "Notes", NameKind.RESERVED),
    }
    assert statement.makes == {"notes"}
    assert statement.uses == {"people"}


def test_a_common_table_expression_is_no_table_that_must_exist() -> None:
    statement = rewrite(SCHEMA, "WITH projects AS (SELECT 1) SELECT * FROM projects")
    assert statement.uses == frozenset()
    assert statement.guest.queried == {f"{P}projects"}


def test_columns_are_shown_as_they_were_written() -> None:
    statement = rewrite(SCHEMA, "SELECT (SELECT count(*) FROM presets) FROM [presets]")
    shown = f'(SELECT count(*) FROM "{P}presets" AS "presets")'
    assert statement.column(shown) in {
        "(SELECT count(*) FROM presets)",
        "(SELECT count(*) FROM [presets])",
    }
    assert statement.column("id") == "id"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM main.t",
        "SELECT main.t.a FROM t",
        "SELECT * FROM temp.t",
        "SELECT * FROM sqlite_master",
        "SELECT * FROM SQLITE_Schema",
        'SELECT * FROM "plugin_other_t"',
        "SELECT * FROM pragma_table_info('t')",
        "SELECT * FROM Pragma_Table_List",
        "SELECT * FROM generate_series(1, 2)",
        "SELECT a FROM t WHERE a IN sqlite_master",
        "SELECT a FROM t WHERE a IN main.u",
        "WITH sqlite_x AS (SELECT 1) SELECT * FROM sqlite_x",
        "CREATE TABLE plugin_other_t (a)",
        "CREATE INDEX sqlite_i ON t(a)",
        "CREATE INDEX i ON main.t(a)",
        "CREATE TABLE t (a REFERENCES sqlite_master(name))",
        "ALTER TABLE t RENAME TO plugin_other_t",
        "DROP TABLE main.t",
    ],
)
def test_names_outside_are_refused(sql: str) -> None:
    with pytest.raises(StorageAccessDenied):
        rewrite(SCHEMA, sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM t WHERE a = :name",
        "SELECT * FROM t WHERE a = @name",
        "SELECT * FROM t WHERE a = $name",
        "SELECT 1; SELECT 2",
        "SELECT FROM WHERE",
        "SELECT 'open",
        "SELEKT 1",
        "SELECT " + "(" * 500 + "1" + ")" * 500,
        "CREATE TABLE " + "x" * 200 + " (a)",
        'CREATE TABLE "" (a)',
    ],
)
def test_bad_statements_are_invalid_params(sql: str) -> None:
    with pytest.raises(InvalidParams):
        rewrite(SCHEMA, sql)


@pytest.mark.parametrize(
    "sql",
    ["SELECT " + "NOT " * 5000 + "1", "SELECT " + "-" + " -" * 5000 + "1"],
)
def test_endless_chains_are_refused_and_crash_nothing(sql: str) -> None:
    with pytest.raises((InvalidParams, StorageAccessDenied)):
        rewrite(SCHEMA, sql)


_NAMES = st.sampled_from(["t", "u", '"t"', "[u]", "`T`", "'t'", '"t u"', "[plugin]", '"a""b"'])
_ALIASES = st.sampled_from(["", " x", " AS x", ' AS "y z"'])


@st.composite
def _selects(draw: st.DrawFn, depth: int = 2) -> str:
    name, alias = draw(_NAMES), draw(_ALIASES)
    source = name
    if depth and draw(st.booleans()):
        source = f"({draw(_selects(depth=depth - 1))})"
    text = f"SELECT 1 FROM {source}{alias}"
    if depth and draw(st.booleans()):
        text += f" WHERE EXISTS ({draw(_selects(depth=depth - 1))})"
    if depth and draw(st.booleans()):
        text += f" UNION ALL {draw(_selects(depth=depth - 1))}"
    return text


@settings(deadline=None)
@given(sql=_selects())
def test_sqlite_reads_the_same_tables_with_and_without_the_prefix(sql: str) -> None:
    """SQLite itself says which tables a statement reads; the rewritten one reads ours."""
    plain = _tables_read(sql, prefix="")
    assert _tables_read(rewritten(sql), prefix=P) == {P + name for name in plain}


def _tables_read(sql: str, prefix: str) -> set[str]:
    conn = sqlite3.connect(":memory:")
    try:
        for name in ("t", "u", "t u", "plugin", 'a"b'):
            quoted = (prefix + name).replace('"', '""')
            conn.execute(f'CREATE TABLE "{quoted}" (a)')
        seen: set[str] = set()

        def note(action: int, first: str | None, *_: object) -> int:
            if action == sqlite3.SQLITE_READ and first is not None:
                seen.add(first.lower())
            return sqlite3.SQLITE_OK

        conn.set_authorizer(note)
        conn.execute(sql).fetchall()
        return seen
    finally:
        conn.close()
