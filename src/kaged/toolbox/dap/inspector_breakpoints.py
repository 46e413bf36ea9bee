"""Breakpoints of an inspector, whose conditions also count hits and write logs."""

from __future__ import annotations

import re
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.wire.fastjson import encode_json

_HITS: Final = 'globalThis[Symbol.for("kaged.hits")]'
_HOLE: Final = re.compile(r"\{([^{}]+)\}")


@dataclass(slots=True)
class InspectorBreakpoint:
    """One breakpoint: our number, what was asked for, and the engine's name of it once set."""

    number: int
    path: str
    line: int  # counted from 1, as written
    wanted: JsonObject
    engine_id: str | None = None
    actual: int | None = None
    refusal: str | None = None

    @property
    def condition(self) -> str:
        """Return what the engine evaluates each time it comes by; empty when it always stops."""
        return condition_of(self.wanted, self.number)

    def as_json(self) -> JsonObject:
        """Return it as DAP does."""
        shown: JsonObject = {
            "id": self.number,
            "verified": self.actual is not None,
            "line": self.actual or self.line,
            "source": {"path": self.path},
        }
        if self.refusal is not None:
            shown["message"] = self.refusal
        return shown


class InspectorBreakpoints:
    """All breakpoints of a program, by file."""

    def __init__(self) -> None:
        self._files: dict[str, list[InspectorBreakpoint]] = {}
        self._last = 0

    def of(self, path: str) -> list[InspectorBreakpoint]:
        """Return a file's breakpoints."""
        return list(self._files.get(path, ()))

    def by_engine(self, engine_id: JsonValue) -> InspectorBreakpoint | None:
        """Find a breakpoint by the engine's name of it."""
        for known in self._files.values():
            for one in known:
                if one.engine_id is not None and one.engine_id == engine_id:
                    return one
        return None

    def change(
        self, path: str, asked: JsonValue
    ) -> tuple[list[InspectorBreakpoint], list[InspectorBreakpoint], list[InspectorBreakpoint]]:
        """Take a file's whole list; returns all of it, what is new, and what is no longer wanted.

        One that stays as it was is kept, with the hits it has counted.
        """
        before = self.of(path)
        now: list[InspectorBreakpoint] = []
        new: list[InspectorBreakpoint] = []
        for wanted in asked if isinstance(asked, list) else []:
            line = wanted.get("line") if isinstance(wanted, dict) else None
            if not isinstance(wanted, dict) or type(line) is not int:
                continue
            kept = next((one for one in before if one.wanted == wanted), None)
            if kept is None:
                self._last += 1
                kept = InspectorBreakpoint(self._last, path, line, wanted)
                new.append(kept)
            else:
                before.remove(kept)
            now.append(kept)
        self._files[path] = now
        return now, new, before


def condition_of(wanted: JsonObject, number: int) -> str:
    """Write what the engine evaluates each time it comes by; empty when it always stops."""
    parts: list[str] = []
    condition, hits = wanted.get("condition"), wanted.get("hitCondition")
    if isinstance(condition, str) and condition:
        parts.append(f"({condition}\n)")
    if isinstance(hits, str) and hits.isdigit():
        parts.append(
            f"((h) => (h[{number}] = (h[{number}] ?? 0) + 1) === {hits})({_HITS} ??= {{}})"
        )
    log = wanted.get("logMessage")
    if isinstance(log, str):
        parts.append(f"(console.log({_log_arguments(log)}), false)")
    return " && ".join(parts)


def _log_arguments(message: str) -> str:
    """Turn `x is {x}` into the arguments of a console.log."""
    values: list[str] = []

    def hole(found: re.Match[str]) -> str:
        values.append(f"({found[1]}\n)")
        return "\0"

    text = _HOLE.sub(hole, message.replace("\0", "")).replace("%", "%%").replace("\0", "%s")
    if not values:
        text = text.replace("%%", "%")
    return ", ".join((encode_json(text).decode(), *values))
