"""`Reading` and `DocumentPosition`: the trip through one document, with problems and origins."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field, replace
from enum import Enum
from pathlib import Path
from types import MappingProxyType
from typing import Final, Generic, TypeVar

from kaged.base.lazy_dataclass import dataclass
from kaged.config.nodes import Node, Parsed
from kaged.config.problems import (
    ConfigFileInvalid,
    KeyPath,
    Mark,
    Origin,
    Problem,
    Severity,
    format_key_path,
    show_value,
)

T = TypeVar("T")

MAX_PROBLEMS: Final = 200
"""How many problems of one file are kept; a file this wrong needs no longer list."""


class NoValue(Enum):
    """What a shape gives when there is no value; the problem has been noted."""

    INVALID = "invalid"


INVALID: Final = NoValue.INVALID


@dataclass(frozen=True, slots=True)
class Loaded(Generic[T]):
    """A file turned into a value, with what was noticed on the way.

    `warnings` holds what did not stop the load. An entry with severity `error` means that one
    section of the file is out of use while the rest works (the section itself says so, too).
    `provenance` maps a key path to the place that set it; a value with no entry is a default.
    """

    value: T
    warnings: tuple[Problem, ...] = ()
    provenance: Mapping[str, Origin] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(slots=True)
class Reading:
    """The state of reading one document: what is wrong so far and where each value stands.

    `secretive` keeps values out of messages. `root` is the project root for documents that name
    files of the project, `base` the directory that other relative paths start from, and `home`
    what `~/` stands for; `environ` is where variables come from. `errors` counts every error, also
    those beyond `MAX_PROBLEMS`.
    """

    file: str
    secretive: bool = False
    root: Path | None = None
    base: Path | None = None
    home: Path | None = None
    environ: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    problems: list[Problem] = field(default_factory=list[Problem])
    origins: dict[KeyPath, Origin] = field(default_factory=dict[KeyPath, Origin])
    errors: int = 0

    @property
    def top(self) -> DocumentPosition:
        """The place of the whole document."""
        return DocumentPosition(self, ())

    @property
    def failed(self) -> bool:
        """Whether any problem is an error."""
        return self.errors > 0

    def contained(self) -> Reading:
        """Make a reading whose problems stay apart, for a section that may fail alone."""
        return replace(self, problems=[], errors=0)

    def add(self, problems: Iterable[Problem]) -> None:
        """Take over problems that were found elsewhere."""
        for problem in problems:
            self.errors += problem.severity is Severity.ERROR
            if len(self.problems) < MAX_PROBLEMS:
                self.problems.append(problem)

    def add_contained(self, apart: Reading) -> None:
        """Take over the problems of a section that failed alone; they do not fail this reading."""
        room = MAX_PROBLEMS - len(self.problems)
        self.problems.extend(apart.problems[:room])

    def sorted_problems(self) -> tuple[Problem, ...]:
        """Return the problems in the order of the file."""
        return tuple(
            sorted(self.problems, key=lambda problem: (problem.line or 0, problem.column or 0))
        )

    def read(
        self, parsed: Parsed, read: Callable[[Node, DocumentPosition], T | NoValue]
    ) -> Loaded[T]:
        """Take over what a parser made of the file, read it whole and finish."""
        self.add(parsed.problems)
        return self.finish(INVALID if parsed.node is None else read(parsed.node, self.top))

    def finish(self, value: T | NoValue) -> Loaded[T]:
        """Return the value with its warnings, or raise ConfigFileInvalid with everything found."""
        problems = self.sorted_problems()
        if isinstance(value, NoValue) or self.failed:
            raise ConfigFileInvalid(problems)
        return Loaded(value, problems, self.provenance())

    def provenance(self) -> Mapping[str, Origin]:
        """Return the origins found so far, by written key path."""
        return MappingProxyType(
            {format_key_path(path): origin for path, origin in self.origins.items()}
        )


@dataclass(frozen=True, slots=True)
class DocumentPosition:
    """Where a reading stands in its document."""

    reading: Reading
    path: KeyPath

    def under(self, step: str | int, mark: Mark) -> DocumentPosition:
        """Go one step down, remembering where the value there was written."""
        path = (*self.path, step)
        self.reading.origins[path] = Origin(self.reading.file, mark.line)
        return DocumentPosition(self.reading, path)

    def at(self, *steps: str | int) -> DocumentPosition:
        """Return the position some steps down, where nothing need be written."""
        return DocumentPosition(self.reading, (*self.path, *steps))

    def inside(self, reading: Reading) -> DocumentPosition:
        """Return the same path in another reading."""
        return DocumentPosition(reading, self.path)

    @property
    def key_path(self) -> str:
        """The path as it is written in messages."""
        return format_key_path(self.path)

    def error(
        self, at: Node | Mark, message: str, fix: str = "", code: str = "invalid_value"
    ) -> NoValue:
        """Note an error here; returns INVALID, so that a shape can return it."""
        self._note(at, message, fix, code, Severity.ERROR)
        return INVALID

    def warn(self, at: Node | Mark, message: str, fix: str = "", code: str = "advice") -> None:
        """Note something that a person should know and that stops nothing."""
        self._note(at, message, fix, code, Severity.WARNING)

    def show(self, value: object) -> str:
        """Quote a value for a message, unless this document's values are secret."""
        return "the value" if self.reading.secretive else show_value(value)

    def _note(self, at: Node | Mark, message: str, fix: str, code: str, severity: Severity) -> None:
        mark = at.mark if isinstance(at, Node) else at
        problem = Problem(
            self.reading.file,
            mark.line,
            mark.column,
            self.key_path,
            message,
            fix,
            severity,
            code,
        )
        self.reading.add([problem])


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Find the known name that a typo most likely meant."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None
