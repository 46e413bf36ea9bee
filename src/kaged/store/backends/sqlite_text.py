"""Full-text search with SQLite's FTS5: the index of a table, and the words of a query."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sqlalchemy import Column, ColumnElement, Connection, Integer, literal_column, select, table

from kaged.store.text_query import Term, TextQuery


def index_name(table: str) -> str:
    """Return the name of a table's full-text index; SQLite puts helpers of it beside it."""
    return f"{table}_text"


def create_index(
    conn: Connection, owner: str, key: str, columns: Sequence[str], *, bare: bool = False
) -> None:
    """Make an index that holds no copy of the text, only of its words.

    Not kept in step by triggers: with `trusted_schema` off a trigger may not touch it. A `bare`
    one has no table to look the text up in.
    """
    source = "content=''" if bare else f"content='{owner}', content_rowid='{key}'"
    conn.exec_driver_sql(
        f"CREATE VIRTUAL TABLE {index_name(owner)} USING fts5({', '.join(columns)}, "
        f"{source}, tokenize='unicode61 remove_diacritics 2')"
    )


def put_text(
    conn: Connection,
    owner: str,
    row: int,
    old: Mapping[str, str] | None,
    new: Mapping[str, str],
) -> None:
    """Bring the index in step with a row; it forgets a text only if told what it was."""
    index = index_name(owner)
    names = ", ".join(new)
    marks = ", ".join("?" * (len(new) + 1))
    if old is not None:
        drop_text(conn, owner, row, {name: old[name] for name in new})
    # On the driver's connection: every entry of every session comes through here.
    conn.connection.cursor().execute(
        f"INSERT INTO {index} (rowid, {names}) VALUES ({marks})",  # noqa: S608 - names of our own schema
        (row, *new.values()),
    )


def drop_text(conn: Connection, owner: str, row: int, old: Mapping[str, str]) -> None:
    """Take a row out of the index; what it said must be given as it was put in."""
    index = index_name(owner)
    marks = ", ".join("?" * (len(old) + 1))
    conn.exec_driver_sql(
        f"INSERT INTO {index} ({index}, rowid, {', '.join(old)}) VALUES ('delete', {marks})",  # noqa: S608 - names of our own schema
        (row, *old.values()),
    )


def matches(key: Column[int], query: TextQuery) -> ColumnElement[bool]:
    """Return the condition that a row's text fits a query; `key` is the one of the index."""
    index = index_name(str(key.table))
    fits = literal_column(index).op("MATCH", is_comparison=True)(_expression(query))
    return key.in_(select(literal_column("rowid", Integer)).select_from(table(index)).where(fits))


def _expression(query: TextQuery) -> str:
    return " OR ".join(f"({_group(group)})" for group in query.groups)


def _group(terms: Sequence[Term]) -> str:
    wanted = " AND ".join(_string(term) for term in terms if not term.exclude)
    return "".join((wanted, *(f" NOT {_string(term)}" for term in terms if term.exclude)))


def _string(term: Term) -> str:
    # In quotes nothing is an operator; a quote cannot be in there, and is doubled all the same.
    quoted = term.text.replace('"', '""')
    return f'"{quoted}"*' if term.prefix else f'"{quoted}"'
