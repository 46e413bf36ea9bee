"""SQLite's grammar as sqlglot reads it, strict: what it cannot read it says so, and logs nothing.

Imported on first use only: sqlglot is large.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn, cast

from sqlglot import exp
from sqlglot.dialects.sqlite import SQLite
from sqlglot.errors import ErrorLevel, SqlglotError
from sqlglot.tokens import (
    Token,  # pyright: ignore[reportPrivateImportUsage] - its place since the first release
    TokenType,  # pyright: ignore[reportPrivateImportUsage] - its place since the first release
)

from kaged.store.backends.sqlite_fence import syntax_problem
from kaged.wire.errors import InvalidParams, StorageAccessDenied

TOKENS_LIMIT = 20_000
NESTING_LIMIT = 80  # SQLite's own parser gives up soon after

_CONFLICT = frozenset({"ABORT", "FAIL", "IGNORE", "REPLACE", "ROLLBACK"})
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE, TokenType.CASE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE, TokenType.END})


class _Parser(SQLite.Parser):
    """Refuses where sqlglot would keep a statement as mere text."""

    def _parse_as_command(self, start: Token) -> NoReturn:
        raise SqlglotError(f"{start.text} is not understood")


class KagedGuest(SQLite):
    """SQLite, with no statement that the tokenizer swallows whole."""

    class Tokenizer(SQLite.Tokenizer):
        """Reads every statement to its end."""

        COMMANDS: frozenset[TokenType] = frozenset()

    Parser = _Parser


def parse_statement(sql: str) -> exp.Expr:
    """Read one statement into a tree whose identifiers know their places in the text.

    Raises:
        InvalidParams: it is no SQL, several statements, or too deeply nested.
        StorageAccessDenied: SQLite could read it, but we cannot (PH-AMB-30).
    """
    dialect = KagedGuest()
    try:
        tokens = _single(dialect.tokenize(sql))
        parser = cast("_Parser", dialect.parser(error_level=ErrorLevel.IMMEDIATE))
        (tree,) = parser.parse(_plain(tokens), sql)
    except (SqlglotError, RecursionError, ValueError) as error:
        raise _unreadable(sql) from error
    if tree is None:
        raise _unreadable(sql)
    return tree


def replace_names(sql: str, replacement: Callable[[str], str | None]) -> str:
    """Return a statement with names exchanged; `replacement` returns the new text or None.

    Looks at names alone: what stands in a string or a comment stays.
    """
    parts: list[str] = []
    position = 0
    for token in KagedGuest().tokenize(sql):
        if token.token_type not in {TokenType.VAR, TokenType.IDENTIFIER}:
            continue
        text = replacement(token.text)
        if text is not None:
            parts += (sql[position : token.start], text)
            position = token.end + 1
    return "".join((*parts, sql[position:]))


def named_parameter() -> InvalidParams:
    """Make the error for a parameter that is not a question mark."""
    return InvalidParams("name no parameters: write ? for each value of params")


def _unreadable(sql: str) -> InvalidParams | StorageAccessDenied:
    problem = syntax_problem(sql)
    if problem is not None:
        return InvalidParams(f"the statement is no valid SQL: {problem}")
    return StorageAccessDenied("the statement has a form that the host does not understand")


def _single(tokens: list[Token]) -> list[Token]:
    """Return the tokens of the one statement, without the semicolons at its end."""
    if len(tokens) > TOKENS_LIMIT:
        raise InvalidParams(
            f"the statement is too long to read; the limit is {TOKENS_LIMIT} words and signs",
            detail={"limit": "tokens", "value": TOKENS_LIMIT},
        )
    depth = 0
    for token in tokens:
        if token.token_type is TokenType.VAR and token.text.startswith("$"):
            raise named_parameter()
        depth += (token.token_type in _OPENING) - (token.token_type in _CLOSING)
        if depth > NESTING_LIMIT:
            raise InvalidParams(
                f"the statement is nested deeper than {NESTING_LIMIT} levels",
                detail={"limit": "nesting", "value": NESTING_LIMIT},
            )
    kept = list(tokens)
    while kept and kept[-1].token_type is TokenType.SEMICOLON:
        kept.pop()
    while kept and kept[0].token_type is TokenType.SEMICOLON:
        kept.pop(0)
    if any(token.token_type is TokenType.SEMICOLON for token in kept):
        raise InvalidParams("sql holds several statements; send one per call")
    return kept


def _plain(tokens: list[Token]) -> list[Token]:
    """Leave out what sqlglot does not know and that names no table.

    The tree is only used to find names; SQLite gets the text with all of it.
    """
    words = [token.text.upper() for token in tokens]
    kept: list[Token] = []
    place = 0
    while place < len(tokens):
        skipped = _skipped(tokens, words, place)
        if skipped:
            place += skipped
            continue
        token = tokens[place]
        if place == 0 and words[0] == "REPLACE":
            token = _as(token, TokenType.INSERT, "INSERT")
        kept.append(token)
        drops = words[0] == "ALTER" and words[place] == "DROP"
        if drops and words[place + 1 : place + 2] != ["COLUMN"]:
            kept.append(_as(token, TokenType.COLUMN, "COLUMN"))
        place += 1
    return kept


def _skipped(tokens: list[Token], words: list[str], place: int) -> int:
    """Count the tokens to leave out here."""
    here, following = words[place], words[place + 1 : place + 3]
    if here == "OR" and place == 1 and words[0] == "UPDATE":
        return 2  # UPDATE OR IGNORE t
    if here == "ON" and following[:1] == ["CONFLICT"] and set(following[1:]) & _CONFLICT:
        return 3  # UNIQUE ON CONFLICT IGNORE
    if place and tokens[place].token_type is TokenType.NUMBER:
        before = tokens[place - 1]
        adjacent = before.end + 1 == tokens[place].start
        return int(before.token_type is TokenType.PLACEHOLDER and adjacent)  # ?1
    if words[0] == "CREATE" and words[1:2] == ["TABLE"] and _is_option(words, place):
        return len(words) - place  # WITHOUT ROWID, STRICT at the end
    return 0


def _is_option(words: list[str], place: int) -> bool:
    rest = [word for word in words[place:] if word != ","]
    behind_columns = words[place - 1] == ")"
    return behind_columns and bool(rest) and set(rest) <= {"WITHOUT", "ROWID", "STRICT"}


def _as(token: Token, kind: TokenType, text: str) -> Token:
    return Token(kind, text, token.line, token.col, token.start, token.end)
