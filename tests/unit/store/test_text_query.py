"""What people type into a search box, as words and phrases."""

from __future__ import annotations

import sqlite3

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kaged.store.backends.sqlite_text import _expression
from kaged.store.text_query import SearchInvalid, Term, TextQuery, parse_text_query


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("auth module", [[Term("auth"), Term("module")]]),
        ("a AND b", [[Term("a"), Term("b")]]),
        ("a OR b c", [[Term("a")], [Term("b"), Term("c")]]),
        ("a -b", [[Term("a"), Term("b", exclude=True)]]),
        ("a NOT b c", [[Term("a"), Term("b", exclude=True), Term("c")]]),
        ('"two words" x', [[Term("two words"), Term("x")]]),
        ('a -"two words"', [[Term("a"), Term("two words", exclude=True)]]),
        ("beg*", [[Term("beg", prefix=True)]]),
        ("prefers-color-scheme", [[Term("prefers-color-scheme")]]),
        ("a ++ b", [[Term("a"), Term("b")]]),
        ("title:x", [[Term("title:x")]]),
        ("OR a OR", [[Term("a")]]),
        ("x\x00y", [[Term("x"), Term("y")]]),
    ],
)
def test_words_phrases_and_operators_are_understood(text: str, groups: list[list[Term]]) -> None:
    assert parse_text_query(text) == TextQuery(tuple(map(tuple, groups)))


@pytest.mark.parametrize("text", ["", '"', 'a "b', "-a", "NOT a", "a OR -b", "*", "a " * 33])
def test_what_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(SearchInvalid) as raised:
        parse_text_query(text)
    assert raised.value.code == "invalid_params"
    assert raised.value.data["fields"]


@given(st.text(max_size=60) | st.text('ab"*-()^:{}+ANDORT \x00\n', max_size=40))
@example('"a" OR "b"*')
def test_whatever_is_typed_is_a_query_or_is_refused(text: str) -> None:
    try:
        query = parse_text_query(text)
    except SearchInvalid:
        return
    with sqlite3.connect(":memory:") as conn:
        conn.execute("CREATE VIRTUAL TABLE t USING fts5(title, body)")
        conn.execute("INSERT INTO t VALUES ('a b', 'c')")
        conn.execute("SELECT rowid FROM t WHERE t MATCH ?", (_expression(query),)).fetchall()
    conn.close()
