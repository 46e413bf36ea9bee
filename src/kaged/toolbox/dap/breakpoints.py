"""`Breakpoints`: what the agent wants to stop at. Adapters only know whole lists; we keep them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass

MAX_BREAKPOINTS: Final = 1000


@dataclass(slots=True)
class SourceBreakpoint:
    """A breakpoint on a line; `adapter_id` is the adapter's own number for it."""

    id: int
    path: str  # resolved
    shown: str  # './' form
    line: int
    condition: str | None = None
    hit_count: int | None = None
    log_message: str | None = None
    verified: bool = False
    actual_line: int = 0
    adapter_id: JsonValue = None

    def wanted(self) -> JsonObject:
        """Return it as the adapter is told."""
        hits = None if self.hit_count is None else str(self.hit_count)
        asked: JsonObject = {
            "condition": self.condition,
            "hitCondition": hits,
            "logMessage": self.log_message,
        }
        return {"line": self.line, **_given(asked)}

    def as_json(self) -> JsonObject:
        """Return it as `list_breakpoints` shows it."""
        return {
            "id": self.id,
            "path": self.shown,
            "line": self.line,
            "condition": self.condition,
            "verified": self.verified,
            **_given({"hit_count": self.hit_count, "log_message": self.log_message}),
        }


@dataclass(slots=True)
class OtherBreakpoint:
    """A breakpoint on an instruction or on data, as the adapter is told of it."""

    id: int
    wanted: JsonObject
    verified: bool = False
    adapter_id: JsonValue = None


@dataclass(slots=True)
class Breakpoints:
    """All breakpoints of one debug session; numbers are never used twice."""

    sources: dict[str, dict[int, SourceBreakpoint]] = field(default_factory=dict)
    instructions: dict[tuple[str, int], OtherBreakpoint] = field(default_factory=dict)
    data: dict[str, OtherBreakpoint] = field(default_factory=dict)
    _last: int = 0

    def next_id(self) -> int:
        """Return a number that no breakpoint of this session has had."""
        self._last += 1
        return self._last

    def all_sources(self) -> Iterator[SourceBreakpoint]:
        """Yield every breakpoint on a line, oldest first."""
        found = [one for lines in self.sources.values() for one in lines.values()]
        yield from sorted(found, key=lambda one: one.id)

    def __len__(self) -> int:
        """Count all of them."""
        lines = sum(map(len, self.sources.values()))
        return lines + len(self.instructions) + len(self.data)

    def hit(
        self, body: JsonObject, path: str | None, line: int | None
    ) -> SourceBreakpoint | OtherBreakpoint | None:
        """Find the breakpoint that a stop is about: by the adapter's number, else by the place.

        Where it has neither, the only one on data is meant: such stops are rarely numbered.
        """
        hit = body.get("hitBreakpointIds")
        numbers = hit if isinstance(hit, list) else []
        others = (*self.instructions.values(), *self.data.values())
        for one in (*self.all_sources(), *others):
            if one.adapter_id is not None and one.adapter_id in numbers:
                return one
        said = f"{body.get('reason')} {body.get('description')}"
        if len(self.data) == 1 and ("data breakpoint" in said or "watchpoint" in said):
            return next(iter(self.data.values()))
        for one in self.all_sources():
            if one.path == path and line in (one.line, one.actual_line):
                return one
        return None

    def note_change(self, body: JsonObject) -> None:
        """Take a `breakpoint` event: it may be verified, or moved, only later."""
        answer = body.get("breakpoint")
        if not isinstance(answer, dict):
            return
        number = answer.get("id")
        others = (*self.instructions.values(), *self.data.values())
        for one in (*self.all_sources(), *others):
            if number is not None and one.adapter_id == number:
                note(one, answer)


def note_answers(sent: Sequence[SourceBreakpoint | OtherBreakpoint], body: JsonObject) -> None:
    """Take what the adapter says of breakpoints, in the order in which they were sent."""
    answers = body.get("breakpoints")
    for one, answer in zip(sent, answers if isinstance(answers, list) else [], strict=False):
        if isinstance(answer, dict):
            note(one, answer)


def note(one: SourceBreakpoint | OtherBreakpoint, answer: JsonObject) -> None:
    """Take what the adapter says of one breakpoint."""
    one.verified = answer.get("verified") is True
    if answer.get("id") is not None:
        one.adapter_id = answer["id"]
    line = answer.get("line")
    if isinstance(one, SourceBreakpoint) and type(line) is int:
        one.actual_line = line


def _given(values: JsonObject) -> JsonObject:
    return {name: value for name, value in values.items() if value is not None}
