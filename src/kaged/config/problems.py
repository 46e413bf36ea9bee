"""`Problem`: one thing wrong in one file, said with line, key path and fix; `ConfigFileInvalid`."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import TypeAlias

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass

KeyPath: TypeAlias = tuple[str | int, ...]

_BARE = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")
_SHOWN_CHARS = 60


class Severity(StrEnum):
    """Whether a problem stops something (`error`) or is only said (`warning`)."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Mark:
    """A place in a file; both numbers count from 1, as editors do."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value came from: a line of a file, or a default with its reason."""

    file: str | None
    line: int | None
    note: str = ""

    def __str__(self) -> str:
        """Return `file:line`, or the note of a default."""
        if self.file is None:
            return self.note or "default"
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        return f"{place} ({self.note})" if self.note else place


DEFAULT = Origin(file=None, line=None, note="default")


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a file, with everything a person needs to mend it.

    `code` names the kind of problem for machines (`unknown_key`, `knob_binds_to_system_config`).
    `line` and `column` are None only when the file as a whole is the problem.
    """

    file: str
    line: int | None
    column: int | None
    key_path: str
    message: str
    fix: str = ""
    severity: Severity = Severity.ERROR
    code: str = "invalid_value"

    @classmethod
    def at(
        cls, file: str, mark: Mark | None, key_path: str, message: str, fix: str, code: str
    ) -> Problem:
        """Return an error at a place in a file, or of the file as a whole."""
        line, column = (None, None) if mark is None else (mark.line, mark.column)
        return cls(file, line, column, key_path, message, fix, code=code)

    def __str__(self) -> str:
        """Return the problem in one line, in the form that editors make clickable."""
        place = self.file
        if self.line is not None:
            place = f"{place}:{self.line}"
            if self.column is not None:
                place = f"{place}:{self.column}"
        what = f"{self.key_path}: {self.message}" if self.key_path else self.message
        text = f"{place}: {self.severity.value}: {what}"
        return f"{text} ({self.fix})" if self.fix else text

    def as_json(self) -> JsonObject:
        """Return the fields as JSON, for error data and HTTP answers."""
        return {
            "file": self.file,
            "line": self.line,
            "column": self.column,
            "key_path": self.key_path,
            "message": self.message,
            "fix": self.fix,
            "severity": self.severity.value,
            "code": self.code,
        }


class ConfigFileInvalid(KagedError):
    """A file cannot be used; nothing of it was loaded.

    `problems` holds every problem found, warnings included, in file order.
    """

    code = "config_invalid"

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems: tuple[Problem, ...] = tuple(problems)
        errors = [problem for problem in self.problems if problem.severity is Severity.ERROR]
        listed: list[JsonValue] = [problem.as_json() for problem in self.problems]
        lines = "\n".join(f"  {problem}" for problem in self.problems)
        count = "1 problem" if len(errors) == 1 else f"{len(errors)} problems"
        file = errors[0].file if errors else "configuration"
        super().__init__(f"{count} in {file}:\n{lines}", problems=listed)


def format_key_path(path: Iterable[str | int]) -> str:
    """Write a path as people do: `primary.tools."file.*".enabled`, `cage.fs[0].mode`."""
    text = ""
    for step in path:
        if isinstance(step, int):
            text += f"[{step}]"
            continue
        bare = bool(step) and all(char in _BARE for char in step)
        name = step if bare else '"' + step.replace("\\", "\\\\").replace('"', '\\"') + '"'
        text += f".{name}" if text else name
    return text


def show_value(value: object) -> str:
    """Quote a value for a message, shortened and in one line."""
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"
