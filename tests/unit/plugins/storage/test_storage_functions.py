"""The text functions that stand in for SQLite's own give the same results."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from kaged.store.backends.sqlite_functions import use_linear_functions
from thorough import examples

LIMIT = 1000

_TEXTS = st.text(alphabet="abX é\n", max_size=8)
_VALUES = st.one_of(
    st.none(),
    _TEXTS,
    st.binary(max_size=4).filter(lambda raw: raw.isascii() and b"\0" not in raw),
    st.integers(-(2**63), 2**63 - 1),
    st.sampled_from([0.5, 1.0, -2.0, 1e20, 1e-7, 123456789.25, float("inf"), float("-inf")]),
)


@pytest.fixture(scope="module")
def both() -> Iterator[tuple[sqlite3.Connection, sqlite3.Connection]]:
    theirs, ours = sqlite3.connect(":memory:"), sqlite3.connect(":memory:")
    end = use_linear_functions(ours, LIMIT)
    yield theirs, ours
    theirs.close()
    ours.close()
    end()


@settings(max_examples=examples(50), deadline=None)
@given(
    name=st.sampled_from(["instr", "trim", "ltrim", "rtrim"]), values=st.tuples(_VALUES, _VALUES)
)
@example(name="instr", values=(b"ab", b"b"))
@example(name="instr", values=("abc", ""))
@example(name="trim", values=("xxaxx", "x"))
def test_two_arguments_give_the_same(
    both: tuple[sqlite3.Connection, sqlite3.Connection], name: str, values: tuple[object, object]
) -> None:
    sql = f"SELECT {name}(?1, ?2), typeof({name}(?1, ?2))"
    theirs, ours = (conn.execute(sql, values).fetchone() for conn in both)
    assert ours == theirs


@settings(max_examples=examples(50), deadline=None)
@given(values=st.tuples(_VALUES, _VALUES, _VALUES))
@example(values=("aXbX", "X", "yy"))
@example(values=(5, "", "x"))
@example(values=("a", "", None))
def test_replace_gives_the_same(
    both: tuple[sqlite3.Connection, sqlite3.Connection], values: tuple[object, object, object]
) -> None:
    sql = "SELECT replace(?1, ?2, ?3), typeof(replace(?1, ?2, ?3))"
    theirs, ours = (conn.execute(sql, values).fetchone() for conn in both)
    assert ours == theirs


@settings(max_examples=examples(50), deadline=None)
@given(
    pattern=st.lists(
        st.sampled_from(
            ["a", "%d", "%5d", "%-5s|", "%05.1f", "%.3s", "%*d", "%.*f", "%%", "%q", "%w", "%x",
             "%c", "%+d", "%,d", "%!.20g", "%s", "é", "%"]
        ),
        max_size=4,
    ).map("".join),
    values=st.lists(
        st.one_of(st.none(), _TEXTS, st.integers(-50, 50), st.sampled_from([0.5, 2.0, 1e20])),
        max_size=4,
    ),
)  # fmt: skip
@example(pattern="%08.3f %s", values=[3.14159, "x"])
def test_printf_gives_the_same(
    both: tuple[sqlite3.Connection, sqlite3.Connection], pattern: str, values: list[object]
) -> None:
    assume("*" not in pattern or 1e20 not in values)  # whose value a star takes is not looked at
    marks = ", ".join("?" * (len(values) + 1))
    for conn in both:
        # SQLite itself cuts characters in two; what is left of them is no text.
        conn.text_factory = lambda raw: raw.decode("utf-8", "replace")
    for name in ("printf", "format"):
        theirs, ours = (
            conn.execute(f"SELECT {name}({marks})", (pattern, *values)).fetchone() for conn in both
        )
        assert ours == theirs


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("%.2147483647c", ["x"]),
        ("%2147483647d", [1]),
        ("%.*c", [2**31 - 1, "x"]),
        ("%*d", ["999999999", 1]),
        ("%.99999999999999999999999999d", [1]),
        ("%900d%900d", [1, 2]),
        ("%-0 0,!900.900f", [1.0]),
    ],
)
def test_a_width_beyond_the_limit_is_too_big_at_once(pattern: str, values: list[object]) -> None:
    conn = sqlite3.connect(":memory:")
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT)
    end = use_linear_functions(conn, LIMIT)
    try:
        marks = ", ".join("?" * (len(values) + 1))
        with pytest.raises(sqlite3.DataError, match="too big"):
            conn.execute(f"SELECT printf({marks})", (pattern, *values)).fetchone()
    finally:
        conn.close()
        end()


def test_a_result_beyond_the_limit_is_not_built() -> None:
    conn = sqlite3.connect(":memory:")
    conn.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LIMIT)
    end = use_linear_functions(conn, LIMIT)
    try:
        with pytest.raises(sqlite3.DataError, match="too big"):
            conn.execute("SELECT length(replace(?, 'a', ?))", ("a" * 900, "b" * 900)).fetchone()
    finally:
        conn.close()
        end()


def test_they_may_stand_in_constraints_and_indexes() -> None:
    conn = sqlite3.connect(":memory:")
    end = use_linear_functions(conn, LIMIT)
    try:
        conn.execute("PRAGMA trusted_schema=ON")
        conn.execute("CREATE TABLE t (a CHECK (trim(a, 'x') <> ''), b AS (replace(a, 'a', 'b')))")
        conn.execute("CREATE INDEX i ON t (instr(a, 'b'))")
        conn.execute("INSERT INTO t (a) VALUES ('abc')")
        with pytest.raises(sqlite3.IntegrityError):
            conn.execute("INSERT INTO t (a) VALUES ('xx')")
        assert conn.execute("SELECT b FROM t WHERE instr(a, 'b') = 2").fetchall() == [("bbc",)]
    finally:
        conn.close()
        end()
