"""`Affinity`: how much a statement of the source speaks of what a row and its tests speak of.

A row's tests run far more than what the row is about: set-up, parsing, bookkeeping. What the row is
about shares its words: those of the row itself, of the test's name, and of what the test asserts.
Rare words count more than common ones.
"""

from __future__ import annotations

import ast
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from mutating.copies import ROOT

SOURCE = ROOT / "src" / "kaged"
SAID, NAMED, TESTED = 2.0, 1.5, 1.0  # how much a word counts by where it stands
AROUND = 0.5  # of a word in the name and docstring of the function around a statement
_WORD = re.compile(r"[A-Za-z]{3,}")
_PART = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_DULL = frozenset(
    {
        *("the", "and", "for", "not", "with", "that", "from", "this", "are", "its", "has", "was"),
        *("one", "all", "any", "self", "return", "none", "true", "false", "str", "int", "bool"),
        *("def", "async", "await", "raise", "else", "elif", "try", "import", "class", "assert"),
        *("test", "lab", "call"),
    }
)


def words(text: str) -> Counter[str]:
    """Return the words of a text or of code, names taken apart, without endings."""
    found: Counter[str] = Counter()
    for word in _WORD.findall(text.replace("_", " ")):
        for part in _PART.findall(word):
            stem = _stem(part.lower())
            if len(stem) > 2 and stem not in _DULL:
                found[stem] += 1
    return found


def _stem(word: str) -> str:
    for end in ("ings", "ing", "ies", "ied", "es", "ed", "s"):
        if word.endswith(end) and len(word) - len(end) >= 3:
            word = word.removesuffix(end)
            break
    return word.removesuffix("e")


@dataclass(frozen=True, slots=True)
class _Around:
    """A function: which lines it has, and the words of its name and docstring."""

    first: int
    last: int
    words: frozenset[str]


@dataclass(slots=True)
class Affinity:
    """Knows how rare each word is in the source."""

    _seen: Counter[str] = field(default_factory=Counter[str])
    _functions: int = 0

    @classmethod
    def of_source(cls) -> Affinity:
        """Read the source once."""
        made = cls()
        for path in sorted(SOURCE.rglob("*.py")):
            text = path.read_text(encoding="utf-8")
            for _, body in _function_texts(text):
                made._seen.update(words(body).keys())
                made._functions += 1
        return made

    def interest(self, row_text: str, tests: Iterable[str]) -> dict[str, float]:
        """Return the words of a row and of its tests, each with its weight."""
        found: dict[str, float] = {}
        parts = [(row_text, SAID)]
        for node in tests:
            name = node.rpartition("::")[2].partition("[")[0]
            parts += [(name, NAMED), (test_text(node.partition("::")[0], name), TESTED)]
        for text, weight in parts:
            for word in words(text):
                found[word] = max(found.get(word, 0.0), weight * self._rarity(word))
        return found

    def score(self, file: str, line: int, statement: str, interest: Mapping[str, float]) -> float:
        """Return how much a statement in a file speaks of something."""
        own = words(statement)
        near = _around(file, line) - own.keys()
        got = sum(interest.get(word, 0.0) for word in own)
        got += AROUND * sum(interest.get(word, 0.0) for word in near)
        return got / math.sqrt(1 + len(own) + AROUND * len(near))

    def _rarity(self, word: str) -> float:
        return math.log((1 + self._functions) / (1 + self._seen[word]))


def _around(file: str, line: int) -> frozenset[str]:
    found: frozenset[str] = frozenset()
    for one in _functions(file):
        if one.first <= line <= one.last:
            found = one.words  # the innermost comes last
    return found


def function_at(file: str, line: int) -> int:
    """Return where the innermost function around a line begins; 0 outside of any."""
    return max((one.first for one in _functions(file) if one.first <= line <= one.last), default=0)


@cache
def _functions(file: str) -> tuple[_Around, ...]:
    tree = ast.parse((SOURCE / file).read_text(encoding="utf-8"))
    found: list[_Around] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            text = f"{node.name} {ast.get_docstring(node) or ''} {Path(file).stem}"
            last = node.end_lineno or node.lineno
            found.append(_Around(node.lineno, last, frozenset(words(text))))
    return tuple(sorted(found, key=lambda one: (one.first, -one.last)))


def test_text(module: str, function: str) -> str:
    """Return the source of a test function."""
    return _test_texts(module).get(function, "")


@cache
def _test_texts(module: str) -> dict[str, str]:
    return dict(_function_texts((ROOT / module).read_text(encoding="utf-8")))


def _function_texts(text: str) -> Iterator[tuple[str, str]]:
    """Yield the functions of a module: name, and its lines."""
    lines = text.splitlines(keepends=True)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, "".join(lines[node.lineno - 1 : node.end_lineno])
