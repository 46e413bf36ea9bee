"""Ways to reach tables that are not the plugin's own, and what has to come of each.

The attacker is the plugin `attacker` with tables `notes` and `tags` of its own. There are a plugin
`victim` with a table `secrets`, a plugin `attacker-x` whose tables share the attacker's prefix,
and the host's tables.
"""

from __future__ import annotations

from dataclasses import dataclass, field

DENIED, INVALID, FAILED = -32003, -32602, -32000
SECRET = "TOP-SECRET-TOKEN"
HOST_SECRET = "HOST-SECRET-ROOT"
NEIGHBOUR_SECRET = "NEIGHBOUR-SECRET"
SECRETS = (SECRET, HOST_SECRET, NEIGHBOUR_SECRET)
V = "plugin_victim_secrets"


@dataclass(frozen=True, slots=True)
class Attack:
    """One statement and the error that it has to end with."""

    name: str
    sql: str
    code: int = DENIED
    method: str = "query"
    values: tuple[object, ...] = field(default=())


def _queries() -> list[Attack]:
    return [
        Attack("a foreign table by its real name", f"SELECT * FROM {V}"),
        Attack("a host table", "SELECT * FROM projects"),
        Attack("the audit log", "SELECT * FROM audit_events"),
        Attack("the records of names", "SELECT * FROM kaged_plugin_names"),
        Attack("the schema version", "SELECT * FROM kaged_schema"),
        Attack("a host table in capitals", "SELECT * FROM PROJECTS"),
        Attack("a foreign table in capitals", "SELECT * FROM PLUGIN_VICTIM_SECRETS"),
        Attack("a foreign table in double quotes", f'SELECT * FROM "{V}"'),
        Attack("a foreign table in brackets", f"SELECT * FROM [{V}]"),
        Attack("a foreign table in backticks", f"SELECT * FROM `{V}`"),
        Attack("a foreign table in single quotes", f"SELECT * FROM '{V}'"),
        Attack("a qualified host table", "SELECT * FROM main.projects"),
        Attack("a qualified quoted host table", 'SELECT * FROM "main"."projects"'),
        Attack("a qualified own table", "SELECT * FROM main.notes"),
        Attack("a table of the temp schema", "SELECT * FROM temp.notes"),
        Attack("the temp catalog", "SELECT * FROM sqlite_temp_master"),
        Attack("the catalog", "SELECT * FROM sqlite_master"),
        Attack("the catalog by its new name", "SELECT sql FROM sqlite_schema"),
        Attack("the catalog in odd letters", "SELECT * FROM Sqlite_Master"),
        Attack("the catalog, qualified", "SELECT * FROM main.sqlite_master"),
        Attack("the counters", "SELECT * FROM sqlite_sequence"),
        Attack("statistics", "SELECT * FROM sqlite_stat1"),
        Attack("pages", "SELECT * FROM dbstat"),
        Attack("compiled statements", "SELECT * FROM sqlite_stmt"),
        Attack("table list", "SELECT * FROM pragma_table_list"),
        Attack("table info as a function", f"SELECT * FROM pragma_table_info('{V}')"),
        Attack("database list", "SELECT file FROM pragma_database_list()"),
        Attack("function list", "SELECT name FROM pragma_function_list"),
        Attack("a pragma", "PRAGMA table_info(projects)"),
        Attack("a pragma behind a comment", "/* SELECT */ PRAGMA database_list"),
        Attack("a pragma behind a semicolon", ";PRAGMA database_list"),
        Attack("explain", "EXPLAIN SELECT * FROM notes"),
        Attack("explain query plan", f"EXPLAIN QUERY PLAN SELECT * FROM {V}"),
        Attack("a subquery in the columns", f"SELECT (SELECT token FROM {V} LIMIT 1)"),
        Attack("a subquery in FROM", f"SELECT * FROM (SELECT * FROM {V}) AS x"),
        Attack("a subquery in WHERE", f"SELECT * FROM notes WHERE body IN (SELECT token FROM {V})"),
        Attack("EXISTS", "SELECT * FROM notes WHERE EXISTS (SELECT 1 FROM projects)"),
        Attack("IN with a bare table", f"SELECT 'x' IN {V}"),
        Attack("IN with a qualified table", "SELECT 1 IN main.projects"),
        Attack("a subquery in ORDER BY", f"SELECT * FROM notes ORDER BY (SELECT token FROM {V})"),
        Attack("a subquery in LIMIT", f"SELECT * FROM notes LIMIT (SELECT length(token) FROM {V})"),
        Attack("a subquery in HAVING",
               f"SELECT 1 FROM notes GROUP BY 1 HAVING (SELECT count(*) FROM {V})"),
        Attack("a subquery in a window",
               f"SELECT sum(id) OVER (PARTITION BY (SELECT token FROM {V})) FROM notes"),
        Attack("a subquery in a filter",
               f"SELECT count(*) FILTER (WHERE (SELECT 1 FROM {V})) FROM notes"),
        Attack("a join", f"SELECT * FROM notes JOIN {V} ON 1"),
        Attack("a natural join", f"SELECT * FROM notes NATURAL LEFT JOIN {V}"),
        Attack("a comma join", "SELECT * FROM notes, projects"),
        Attack("a join in parentheses", f"SELECT * FROM (notes JOIN {V})"),
        Attack("a union", f"SELECT body FROM notes UNION ALL SELECT token FROM {V}"),
        Attack("except", f"SELECT token FROM {V} EXCEPT SELECT body FROM notes"),
        Attack("a common table expression", f"WITH x AS (SELECT * FROM {V}) SELECT * FROM x"),
        Attack("a common table expression, materialized",
               "WITH x AS MATERIALIZED (SELECT * FROM projects) SELECT * FROM x"),
        Attack("a recursive common table expression",
               f"WITH RECURSIVE x(a) AS (SELECT token FROM {V} UNION SELECT a FROM x) "
               "SELECT * FROM x"),
        Attack("a common table expression of a foreign name", f"WITH {V} AS (SELECT 1) SELECT 1"),
        Attack("a common table expression that hides the catalog",
               "WITH sqlite_master AS (SELECT 1) SELECT * FROM sqlite_master"),
        Attack("count only", f"SELECT count(*) FROM {V}"),
        Attack("rowid only", f"SELECT rowid FROM {V}"),
        Attack("an alias that looks like an own table", f"SELECT notes.* FROM {V} AS notes"),
        Attack("JSON over a foreign subquery",
               f"SELECT value FROM json_each((SELECT json_group_array(token) FROM {V}))"),
        Attack("a column of another schema", "SELECT main.projects.root FROM notes"),
        Attack("a name of two plugins", "SELECT * FROM x_y"),
        Attack("a name of two plugins in capitals", "SELECT * FROM X_Y"),
        Attack("a nested block comment", f"SELECT * /* /* */ FROM {V} -- */ FROM notes"),
        Attack("a line comment", f"SELECT * -- FROM notes\nFROM {V}"),
        Attack("loading an extension", "SELECT load_extension('/tmp/evil.so')"),
        Attack("an extension with an entry point", "SELECT load_extension('evil', 'init')"),
        Attack("a tokenizer's address", "SELECT fts3_tokenizer('simple')"),
        Attack("a log line", "SELECT sqlite_log(1, 'hello')"),
        Attack("compile options", "SELECT sqlite_compileoption_get(1)"),
        Attack("pages through rtree", "SELECT rtreecheck('projects')"),
        Attack("a quadratic function", "SELECT json_patch('{}', '{}')"),
        Attack("a file to read", "SELECT readfile('/etc/passwd')", FAILED),
        Attack("a file to write", "SELECT writefile('/tmp/x', 'x')", FAILED),
        Attack("an editor", "SELECT edit('x', 'sh')", FAILED),
        Attack("a directory", "SELECT * FROM fsdir('/')"),
        Attack("a series", "SELECT * FROM generate_series(1, 10)"),
        Attack("a CSV file", "SELECT * FROM csv('/etc/passwd')"),
        Attack("a NUL character", f"SELECT 1\0 FROM {V}", INVALID),
        Attack("a lone surrogate", f"SELECT '\ud800' FROM {V}", INVALID),
        Attack("a unicode escape", 'SELECT * FROM U&"\\0070rojects"', INVALID),
        Attack("a soft hyphen in the name", "SELECT * FROM proj\u00adects", FAILED),
        Attack("a no-break space for a blank", f"SELECT * FROM {V}\u00a0x"),
        Attack("full-width letters", "SELECT * FROM \uff50rojects", FAILED),
        Attack("a second statement", f"SELECT 1; SELECT * FROM {V}", INVALID),
        Attack("a second statement behind a comment",
               f"SELECT 1 /* ; */; DELETE FROM {V}", INVALID),
        Attack("very deep nesting",
               f"SELECT {'(' * 3000}SELECT token FROM {V}{')' * 3000}", INVALID),
        Attack("a name as a parameter", "SELECT * FROM ?", values=(V,)),
        Attack("a named parameter", "SELECT * FROM notes WHERE id = :x", INVALID, values=(1,)),
        Attack("VALUES with a foreign subquery", f"VALUES ((SELECT token FROM {V}))"),
        Attack("a table made of brackets", "SELECT * FROM [plugin_victim_secrets] x, [projects]"),
    ]  # fmt: skip


def _statements() -> list[Attack]:
    def change(name: str, sql: str, code: int = DENIED) -> Attack:
        return Attack(name, sql, code, "exec")

    return [
        change("insert into a foreign table", f"INSERT INTO {V} VALUES (9, 'mine')"),
        change("insert into a host table", "INSERT INTO projects (id) VALUES ('x')"),
        change("insert into the audit log", "INSERT INTO audit_events (seq) VALUES (0)"),
        change("insert into the records", "INSERT INTO kaged_plugin_names VALUES (1,2,3,4,5)"),
        change("insert into the catalog",
               "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 2, 'x')"),
        change("update the catalog", "UPDATE sqlite_schema SET sql = 'x'"),
        change("update a foreign table", f"UPDATE {V} SET token = 'mine'"),
        change("update or replace", f"UPDATE OR REPLACE {V} SET token = 'mine'"),
        change("delete from a foreign table", f"DELETE FROM {V}"),
        change("delete from a host table", "DELETE FROM projects"),
        change("replace into a foreign table", f"REPLACE INTO {V} VALUES (1, 'mine')"),
        change("copy rows of a foreign table", f"INSERT INTO notes (body) SELECT token FROM {V}"),
        change("copy rows of a host table", "INSERT INTO notes (body) SELECT root FROM projects"),
        change("copy by a value", f"INSERT INTO notes (body) VALUES ((SELECT token FROM {V}))"),
        change("copy by update", f"UPDATE notes SET body = (SELECT token FROM {V})"),
        change("copy by update from", f"UPDATE notes SET body = s.token FROM {V} AS s"),
        change("copy by upsert",
               "INSERT INTO notes (id) VALUES (1) ON CONFLICT (id) DO UPDATE "
               f"SET body = (SELECT token FROM {V})"),
        change("upsert with a foreign condition",
               "INSERT INTO notes (id) VALUES (1) ON CONFLICT (id) DO UPDATE SET body = 'x' "
               f"WHERE EXISTS (SELECT 1 FROM {V})"),
        change("returning",
               f"INSERT INTO notes (body) VALUES ('x') RETURNING (SELECT token FROM {V})"),
        change("delete with a foreign condition", f"DELETE FROM notes WHERE body IN {V}"),
        change("a common table expression in front of an insert",
               f"WITH s AS (SELECT token FROM {V}) INSERT INTO notes (body) SELECT token FROM s"),
        change("create table as select", f"CREATE TABLE stolen AS SELECT * FROM {V}"),
        change("create table as select of a host table",
               "CREATE TABLE stolen AS SELECT * FROM projects"),
        change("create table as select of the catalog",
               "CREATE TABLE stolen AS SELECT * FROM sqlite_master"),
        change("a table under a foreign name", "CREATE TABLE plugin_victim_more (a)"),
        change("a table over a foreign one", f"CREATE TABLE IF NOT EXISTS {V} (a)"),
        change("a table in another schema", "CREATE TABLE main.stolen (a)"),
        change("a table of SQLite's", "CREATE TABLE sqlite_stolen (a)"),
        change("a name of two plugins", "CREATE TABLE x_y (a)"),
        change("a name of two plugins if it is not there", "CREATE TABLE IF NOT EXISTS x_y (a)"),
        change("writing to a name of two plugins", "DELETE FROM x_y"),
        change("dropping a name of two plugins", "DROP TABLE x_y"),
        change("renaming to a name of two plugins", "ALTER TABLE notes RENAME TO x_y"),
        change("renaming to a foreign name", "ALTER TABLE notes RENAME TO plugin_victim_more"),
        change("renaming a foreign table", f"ALTER TABLE {V} RENAME TO notes2"),
        change("a new column in a foreign table", f"ALTER TABLE {V} ADD COLUMN mine"),
        change("dropping a foreign column", f"ALTER TABLE {V} DROP COLUMN token"),
        change("dropping a foreign table", f"DROP TABLE {V}"),
        change("dropping a host table", "DROP TABLE IF EXISTS audit_events"),
        change("dropping a foreign index", "DROP INDEX plugin_victim_by_token"),
        change("dropping a host index", "DROP INDEX main.audit_events_name"),
        change("an index on a foreign table", f"CREATE INDEX i ON {V} (token)"),
        change("an index under a foreign name", "CREATE INDEX plugin_victim_i ON notes (body)"),
        change("an index under a name of two plugins", "CREATE INDEX x_y ON notes (body)"),
        change("an index with a foreign subquery",
               f"CREATE INDEX i ON notes ((SELECT token FROM {V}))"),
        change("a partial index with a foreign subquery",
               f"CREATE INDEX i ON notes (body) WHERE body IN (SELECT token FROM {V})"),
        change("a foreign key to a foreign table", f"CREATE TABLE f (a REFERENCES {V} (id))"),
        change("a foreign key to a host table",
               "CREATE TABLE f (a, FOREIGN KEY (a) REFERENCES projects (id) ON DELETE CASCADE)"),
        change("a foreign key to a name of two plugins", "CREATE TABLE f (a REFERENCES x_y (a))"),
        change("a foreign key added later",
               f"ALTER TABLE notes ADD COLUMN p REFERENCES {V} (id)"),
        change("a default with a subquery",
               f"CREATE TABLE f (a DEFAULT ((SELECT token FROM {V})))"),
        change("a check with a subquery",
               f"CREATE TABLE f (a CHECK (a NOT IN (SELECT token FROM {V})))"),
        change("a generated column with a subquery",
               f"CREATE TABLE f (a, b AS ((SELECT token FROM {V})))"),
        change("a view", f"CREATE VIEW v AS SELECT * FROM {V}"),
        change("a temporary view", f"CREATE TEMP VIEW v AS SELECT * FROM {V}"),
        change("a trigger",
               f"CREATE TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM {V}; END"),
        change("a trigger on a foreign table",
               f"CREATE TRIGGER t AFTER INSERT ON {V} BEGIN "
               "INSERT INTO plugin_attacker_notes (body) VALUES (new.token); END"),
        change("a trigger that hides behind a comment",
               f"CREATE /* TABLE */ TRIGGER t AFTER INSERT ON notes BEGIN DELETE FROM {V}; END"),
        change("a temporary table", "CREATE TEMP TABLE projects (a)"),
        change("a temporary trigger",
               "CREATE TEMP TRIGGER t AFTER INSERT ON main.projects BEGIN SELECT 1; END"),
        change("a virtual table", "CREATE VIRTUAL TABLE f USING fts5(a)"),
        change("a virtual table over foreign content",
               f"CREATE VIRTUAL TABLE f USING fts5(token, content='{V}')"),
        change("a virtual table of pages", "CREATE VIRTUAL TABLE d USING dbstat(main)"),
        change("dropping a view", "DROP VIEW v"),
        change("dropping a trigger of the host", "DROP TRIGGER audit_events_no_update"),
        change("attach", "ATTACH DATABASE '/tmp/evil.db' AS evil"),
        change("attach by an expression", "ATTACH '/tmp/' || 'evil.db' AS evil"),
        change("detach", "DETACH main"),
        change("vacuum", "VACUUM"),
        change("vacuum into a file", "VACUUM INTO '/tmp/evil.db'"),
        change("writable schema", "PRAGMA writable_schema = ON"),
        change("a journal mode", "PRAGMA journal_mode = OFF"),
        change("foreign keys off", "PRAGMA foreign_keys = OFF"),
        change("analyze", "ANALYZE"),
        change("reindex", "REINDEX"),
        change("begin", "BEGIN EXCLUSIVE", INVALID),
        change("commit", "COMMIT", INVALID),
        change("rollback", "ROLLBACK", INVALID),
        change("savepoint", "SAVEPOINT s", INVALID),
        change("two statements", f"DELETE FROM notes; DELETE FROM {V}", INVALID),
        change("or rollback", "INSERT OR ROLLBACK INTO notes (id) VALUES (1)", FAILED),
    ]  # fmt: skip


ATTACKS = [*_queries(), *_statements()]

# Statements that only look like attacks: they work, on the plugin's own rows.
HARMLESS = [
    "WITH projects AS (SELECT 1 AS root) SELECT count(*), max(root) FROM projects",
    "WITH secrets AS (SELECT * FROM notes) SELECT * FROM secrets",
    "SELECT 'plugin_victim_secrets', \"main.projects\" AS x FROM notes",
    "SELECT plugin_victim_secrets.id FROM notes AS plugin_victim_secrets",
    "SELECT json_group_array(body) FROM notes -- FROM projects",
    "SELECT /* FROM projects */ count(*) FROM notes",
    "SELECT value FROM json_tree('{\"projects\": 1}')",
]

__all__ = [
    "ATTACKS",
    "DENIED",
    "FAILED",
    "HARMLESS",
    "INVALID",
    "SECRET",
    "SECRETS",
    "Attack",
    "V",
]
