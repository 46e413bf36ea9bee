"""How SQLite reads names and where a statement begins; text only."""

from __future__ import annotations

import re
import string

# SQLite folds the letters of ASCII and no others: "É" and "é" are two names.
_FOLD = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)
_LEADING = re.compile(r"(?:[ \t\n\f\r;]|--[^\n]*(?:\n|\Z)|/\*.*?(?:\*/|\Z))*", re.DOTALL)
_WORD = re.compile(r"[A-Za-z_]+")


def fold_name(name: str) -> str:
    """Return the form in which two names are equal exactly when SQLite takes them for one."""
    return name.lower() if name.isascii() else name.translate(_FOLD)


def leading_words(sql: str, count: int) -> list[str]:
    """Return the first bare words of a statement in upper case, without blanks and comments."""
    words: list[str] = []
    position = 0
    while len(words) < count:
        gap = _LEADING.match(sql, position)
        position = gap.end() if gap else position
        word = _WORD.match(sql, position)
        if word is None:
            break
        words.append(word.group().upper())
        position = word.end()
    return words
