"""`TextQuery`: what somebody typed into a search box, as words, phrases and what must not occur.

Only this reaches the database's own query language, so nothing that is typed can be a syntax error
or a command there.
"""

from __future__ import annotations

import re

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass

QUERY_LIMIT_CHARS = 500
TERMS_LIMIT = 32

_PIECE = re.compile(r'(?P<not>-?)"(?P<phrase>[^"]*)"(?P<star>\*?)|(?P<word>[^\s"]+)')
_INVISIBLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")
_FIX = 'give words, "phrases in quotes", beginnings such as auth*, a OR b, or -word to exclude'


class SearchInvalid(KagedError):
    """The search text means nothing that could be searched for."""

    code = "invalid_params"

    def __init__(self, problem: str) -> None:
        super().__init__(
            f"search: {problem}", fix=_FIX, fields=[{"field": "search", "problem": problem}]
        )


@dataclass(frozen=True, slots=True)
class Term:
    """A word, or several in a row. With `prefix` the last one may go on."""

    text: str
    prefix: bool = False
    exclude: bool = False


@dataclass(frozen=True, slots=True)
class TextQuery:
    """Groups of terms: a text fits if all terms of one of the groups fit."""

    groups: tuple[tuple[Term, ...], ...]


def parse_text_query(text: str) -> TextQuery:
    """Read what somebody typed.

    Raises:
        SearchInvalid: it is too long, has an open quote, or names nothing to look for.
    """
    if len(text) > QUERY_LIMIT_CHARS:
        raise SearchInvalid(f"has more than {QUERY_LIMIT_CHARS} characters")
    if text.count('"') % 2:
        raise SearchInvalid("has an unclosed quote")
    groups: list[list[Term]] = [[]]
    negate = False
    for found in _PIECE.finditer(_INVISIBLE.sub(" ", text)):
        word = found["word"]
        if word == "OR":
            groups.append([])
        elif word == "NOT":
            negate = True
            continue
        elif word != "AND":
            term = _phrase(found) if word is None else _word(word)
            if any(char.isalnum() for char in term.text):
                groups[-1].append(Term(term.text, term.prefix, term.exclude or negate))
        negate = False
    kept = tuple(tuple(group) for group in groups if group)
    if sum(map(len, kept)) > TERMS_LIMIT:
        raise SearchInvalid(f"has more than {TERMS_LIMIT} words")
    if not kept:
        raise SearchInvalid("has no word in it")
    if any(all(term.exclude for term in group) for group in kept):
        raise SearchInvalid("only says what to exclude")
    return TextQuery(kept)


def _phrase(found: re.Match[str]) -> Term:
    return Term(found["phrase"].strip(), found["star"] == "*", found["not"] == "-")


def _word(word: str) -> Term:
    bare = word.removeprefix("-")
    return Term(bare.rstrip("*"), bare.endswith("*"), bare != word)
