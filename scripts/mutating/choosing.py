"""Which line to break for a row: its tests run it, few others do, and it speaks of the row."""

from __future__ import annotations

import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mutating.affinity import Affinity, function_at, test_text, words
from mutating.copies import ROOT
from mutating.measuring import Measured, function_of, module_of
from mutating.mutations import Mutation, mutations_of

SUBJECT = 1.5  # a module that the test imports by name is what the test is about, likely
OF_ONE_FUNCTION = 2
DRAWN_FROM = 6  # the lines that speak most of what the row speaks of
SUBTLE = ("constant", "off by one")  # chosen where a line offers nothing else

_QUOTED = re.compile(r"[\"']([\w.:/-]{6,})[\"']")  # shorter words are found everywhere
_IMPORTED = re.compile(r"^\s*from kaged\.([\w.]+) import", re.MULTILINE)
_MEMBER = re.compile(r"\.([A-Z][A-Z_]{5,})\b")


@dataclass(frozen=True, slots=True)
class Target:
    """One break for one row."""

    file: str  # below src/kaged
    mutation: Mutation

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return f"src/kaged/{self.file}:{self.mutation.line}"


class Chooser:
    """Knows how many test functions run each line, and what lines speak of."""

    def __init__(self, measured: Measured, affinity: Affinity) -> None:
        self._measured = measured
        self._affinity = affinity
        self._runners: defaultdict[str, defaultdict[int, set[str]]] = defaultdict(
            lambda: defaultdict(set[str])
        )
        for node, test in measured.tests.items():
            self._note(function_of(node), test.lines)
        for module, lines in measured.started.items():
            self._note(module, lines)

    def _note(self, name: str, lines: dict[str, list[int]]) -> None:
        for file, numbers in lines.items():
            for number in numbers:
                self._runners[file][number].add(name)

    def targets(self, row_text: str, nodes: Sequence[str], rng: random.Random) -> list[Target]:
        """Return breaks for a row with these tests, the most telling ones, by seed."""
        own = {function_of(node) for node in nodes} | {module_of(node) for node in nodes}
        covered: defaultdict[str, set[int]] = defaultdict(set)
        for lines in self._lines(nodes):
            for file, numbers in lines.items():
                covered[file].update(numbers)
        subjects = {name for node in nodes for name in _imported(module_of(node))}
        interest = self._affinity.interest(row_text, {function_of(node) for node in nodes})
        scored: list[tuple[float, str, int]] = []
        for file, numbers in covered.items():
            about = SUBJECT if file in subjects else 1.0
            for line, text in _statements(file).items():
                if line in numbers:
                    others = len(self._runners[file][line] - own)
                    speaks = self._affinity.score(file, line, text, interest)
                    scored.append((speaks * about / (1 + others) ** 0.5, file, line))
        scored.sort(key=lambda one: (-one[0], one[1:]))
        best = _spread(scored)[:DRAWN_FROM]
        rng.shuffle(best)
        return [Target(file, self._chosen(file, line, interest, rng)) for _, file, line in best]

    def _chosen(
        self, file: str, line: int, interest: Mapping[str, float], rng: random.Random
    ) -> Mutation:
        here = [one for one in _mutations(file) if one.line == line]
        plain = [one for one in here if one.kind not in SUBTLE]
        if plain:
            return rng.choice(plain)
        # Of several constants in a line, one that the row speaks of.
        told = [sum(interest.get(word, 0.0) for word in words(one.before)) for one in here]
        return rng.choice([one for one, much in zip(here, told, strict=True) if much == max(told)])

    def _lines(self, nodes: Iterable[str]) -> Iterator[dict[str, list[int]]]:
        for module in {module_of(node) for node in nodes}:
            yield self._measured.started.get(module, {})
        for node in nodes:
            yield self._measured.tests[node].lines

    def others(self, target: Target, nodes: Sequence[str]) -> list[str]:
        """Return the other measured tests that run the broken line in their own process."""
        mine = set(nodes)
        return [
            node
            for node, test in self._measured.tests.items()
            if node not in mine
            and test.passed
            and target.mutation.line in test.lines.get(target.file, ())
        ]


def nearness(module: str, file: str, nodes: Iterable[str]) -> int | None:
    """Return how near a test module is to a source file, 0 the nearest; None for not at all."""
    kind, _, rest = module.removeprefix("tests/").partition("/")
    if kind == "whole":  # imports nothing of the product: it is near by its name
        return 5 if words(Path(module).stem).keys() & words(Path(file).stem).keys() else None
    if kind not in {"unit", "contract", "integration", "security"}:
        return None
    slow = 0 if kind in {"unit", "contract"} else 2
    if file in _imported(module):
        return slow
    if module in {module_of(node) for node in nodes}:
        return 1
    package, _, below = file.partition("/")
    if rest.startswith(f"{package}/"):
        return slow + (1 if Path(below).stem.split("_")[0] in rest else 2)
    return None


def naming(nodes: Iterable[str], mutation: Mutation, most: int) -> list[str]:
    """Return tests that have a rare word of a break in their own text: they are about that."""
    found: dict[str, None] = {}
    one_case = {function_of(node): node for node in nodes}
    modules = {module_of(node) for node in one_case.values()}
    for word in sorted(_spellings(mutation.before)):
        within = {module for module in modules if word in _text(module)}
        telling = {
            function: node
            for function, node in one_case.items()
            if (module := module_of(node)) in within
            and word in test_text(module, function.rpartition("::")[2])
        }
        if len(telling) <= most:  # more: a word that says nothing
            found |= dict.fromkeys(telling.values())
    return list(found)


def _spellings(text: str) -> set[str]:
    """Return the words of a break as tests spell them: quoted ones, and members of enumerations."""
    members = [word.lower() for word in _MEMBER.findall(text)]
    return {*_QUOTED.findall(text), *members, *(word.replace("_", ".") for word in members)}


def _spread(scored: Iterable[tuple[float, str, int]]) -> list[tuple[float, str, int]]:
    """Return lines in their order, few of any one function, which may not be what a row means."""
    kept: list[tuple[float, str, int]] = []
    seen: Counter[tuple[str, int]] = Counter()
    for one in scored:
        function = (one[1], function_at(one[1], one[2]))
        if seen[function] < OF_ONE_FUNCTION:
            seen[function] += 1
            kept.append(one)
    return kept


@cache
def _text(module: str) -> str:
    return (ROOT / module).read_text(encoding="utf-8")


@cache
def _mutations(file: str) -> tuple[Mutation, ...]:
    return tuple(mutations_of((ROOT / "src" / "kaged" / file).read_bytes()))


@cache
def _statements(file: str) -> dict[int, str]:
    """Return the lines of a file that can be broken, each with the text that breaks concern."""
    found: dict[int, str] = {}
    text = (ROOT / "src" / "kaged" / file).read_text(encoding="utf-8").splitlines()
    for one in _mutations(file):
        known = found.get(one.line, text[one.line - 1])
        found[one.line] = f"{known} {one.before}"
    return found


@cache
def _imported(module: str) -> frozenset[str]:
    """Return the files of `kaged` that a test module imports from by name."""
    found: set[str] = set()
    for name in _IMPORTED.findall(_text(module)):
        path = Path(*name.split("."))
        found |= {str(path.with_suffix(".py")), str(path / "__init__.py")}
    return frozenset(found)
