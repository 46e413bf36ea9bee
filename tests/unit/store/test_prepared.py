"""A prepared statement does what SQLAlchemy would do with it, each time with other values."""

from __future__ import annotations

import sqlite3

import pytest
from sqlalchemy import (
    Column,
    Integer,
    MetaData,
    Table,
    Text,
    bindparam,
    create_engine,
    insert,
    null,
    select,
    update,
)

from kaged.store.prepared import PreparedStatement

things = Table(
    "things",
    MetaData(),
    Column("key", Integer, primary_key=True),
    Column("a", Text),
    Column("b", Text),
)
_C = things.c
PUT = PreparedStatement(
    insert(things).values({name: bindparam(name) for name in ("key", "a", "b")})
)
SET = PreparedStatement(
    update(things).where(_C.key == bindparam("wanted")).values({"a": bindparam("a")})
)
GET = PreparedStatement(
    select(_C.a, _C.b).where(_C.key == bindparam("wanted"), _C.b.is_(null()) | (_C.b != "hidden"))
)


def test_values_are_bound_by_name_and_what_the_statement_says_itself_stays() -> None:
    engine = create_engine("sqlite://")
    things.metadata.create_all(engine)
    with engine.begin() as conn:
        PUT.run(conn, {"b": None, "a": "x", "key": 1})
        PUT.run(conn, {"key": 2, "a": "y'); DROP TABLE things; --", "b": "hidden"})
        SET.run(conn, {"a": "z", "wanted": 1})
        SET.run(conn, {"a": None, "wanted": 3})
        assert GET.first(conn, {"wanted": 1}) == ("z", None)
        assert GET.first(conn, {"wanted": 2}) is None
        assert GET.run(conn, {"wanted": 1}).fetchall() == [("z", None)]
        assert conn.execute(select(_C.a).order_by(_C.key)).scalars().all() == [
            "z",
            "y'); DROP TABLE things; --",
        ]
        with pytest.raises(sqlite3.IntegrityError):
            PUT.run(conn, {"key": 1, "a": None, "b": None})
    engine.dispose()


def test_a_value_that_is_not_given_is_an_error_and_no_null() -> None:
    engine = create_engine("sqlite://")
    things.metadata.create_all(engine)
    with engine.begin() as conn, pytest.raises(KeyError, match="b"):
        PUT.run(conn, {"key": 1, "a": "x"})
    engine.dispose()
