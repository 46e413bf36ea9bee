"""Which statements are looked at at all."""

from __future__ import annotations

import pytest

from kaged.plugins.storage.gate import SQL_LIMIT_CHARS, check_statement
from kaged.store.backends.sqlite_words import fold_name, leading_words
from kaged.wire.errors import InvalidParams, StorageAccessDenied


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  /* a */ -- b\n select 1",
        "WITH x AS (SELECT 1) SELECT * FROM x",
        "INSERT INTO t VALUES (1)",
        "REPLACE INTO t VALUES (1)",
        "CREATE TABLE t (a)",
        "create unique index i on t(a)",
        "DROP INDEX i",
        "ALTER TABLE t ADD a",
        "anything else is the parser's business",
    ],
)
def test_statements_on_tables_and_indexes_pass(sql: str) -> None:
    check_statement(sql)


@pytest.mark.parametrize("word", ["BEGIN", "commit", "END", "ROLLBACK", "savepoint x", "RELEASE x"])
def test_transaction_commands_are_invalid_params(word: str) -> None:
    with pytest.raises(InvalidParams, match=r"kaged\.storage\.begin"):
        check_statement(f"/* x */ {word}")


@pytest.mark.parametrize(
    "sql",
    [
        "PRAGMA user_version",
        "; pragma user_version",
        "/**/PRAGMA/**/writable_schema=1",
        "ATTACH 'x' AS y",
        "DETACH y",
        "VACUUM INTO 'x'",
        "REINDEX",
        "ANALYZE",
        "EXPLAIN SELECT 1",
        "CREATE VIEW v AS SELECT 1",
        "CREATE TRIGGER t AFTER INSERT ON x BEGIN SELECT 1; END",
        "CREATE TEMP TABLE t (a)",
        "CREATE TEMPORARY TABLE t (a)",
        "CREATE VIRTUAL TABLE t USING fts5(a)",
        "CREATE UNIQUE TABLE t (a)",
        "DROP VIEW v",
        "DROP TRIGGER t",
        "ALTER VIEW v",
    ],
)
def test_what_reaches_beyond_tables_is_denied(sql: str) -> None:
    with pytest.raises(StorageAccessDenied):
        check_statement(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "",
        "  -- nothing",
        "/* open",
        ";;",
        "SELECT '\0'",
        "SELECT '\ud800'",
        "x" * SQL_LIMIT_CHARS * 2,
    ],
)
def test_what_is_no_statement_is_invalid_params(sql: str) -> None:
    with pytest.raises(InvalidParams):
        check_statement(sql)


def test_names_are_folded_as_sqlite_folds_them() -> None:
    assert fold_name("ABCxyz_1") == "abcxyz_1"
    assert fold_name("ÄB") == "Äb"  # SQLite knows the letters of ASCII only
    assert fold_name("\u212aB") == "\u212ab"  # the Kelvin sign is no k


def test_leading_words_skip_blanks_and_comments() -> None:
    assert leading_words(" /* x */ create--y\n\ttable foo", 2) == ["CREATE", "TABLE"]
    assert leading_words("'no word'", 2) == []
