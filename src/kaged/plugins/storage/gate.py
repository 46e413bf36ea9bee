"""`check_statement`: which statements are looked at at all, by their text and first words."""

from __future__ import annotations

from kaged.store.backends.sqlite_words import leading_words
from kaged.wire.errors import InvalidParams, StorageAccessDenied

SQL_LIMIT_CHARS = 64 * 1024

_TRANSACTION = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK", "SAVEPOINT", "RELEASE"})
_OUTSIDE = frozenset({"ANALYZE", "ATTACH", "DETACH", "EXPLAIN", "PRAGMA", "REINDEX", "VACUUM"})
_OBJECTS = {
    "CREATE": (["TABLE"], ["INDEX"], ["UNIQUE", "INDEX"]),
    "DROP": (["TABLE"], ["INDEX"]),
    "ALTER": (["TABLE"],),
}


def check_statement(sql: str) -> None:
    """Refuse what no plugin may run, whatever its tables are.

    Raises:
        InvalidParams: no statement, too long, not text, or a transaction command (PH-STOR-11).
        StorageAccessDenied: it reaches for more than tables and indexes (PH-STOR-05).
    """
    if len(sql) > SQL_LIMIT_CHARS:
        raise InvalidParams(
            f"the statement has {len(sql)} characters and the limit is {SQL_LIMIT_CHARS}",
            detail={"limit": "sql_chars", "value": SQL_LIMIT_CHARS},
        )
    if "\0" in sql:
        raise InvalidParams("the statement holds a NUL character")
    if not sql.isascii():
        try:
            sql.encode()
        except UnicodeEncodeError:
            raise InvalidParams("the statement is no valid Unicode text") from None
    words = leading_words(sql, 3)
    if not words:
        raise InvalidParams("there is no SQL statement in sql")
    first = words[0]
    if first in _TRANSACTION:
        raise InvalidParams(
            f"{first} is not supported in sql: each call is a transaction of its own; use "
            "kaged.storage.begin for several statements"
        )
    if first in _OUTSIDE:
        raise StorageAccessDenied(f"{first} reaches beyond the plugin's own tables")
    _check_object(first, words[1:])


def _check_object(first: str, following: list[str]) -> None:
    allowed = _OBJECTS.get(first)
    if allowed is None or not following:
        return
    if not any(following[: len(words)] == words for words in allowed):
        raise StorageAccessDenied(
            f"{first} {following[0][:40]} is not allowed: plugins have tables and indexes only"
        )
