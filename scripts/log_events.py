"""The page of log events: `logged_events` finds them in the source, `rewrite` makes the table anew.

What an event means is written by hand in the page itself and kept when the table is made anew.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

METHODS = ("debug", "info", "warning", "error", "exception", "critical")
KEY = re.compile(r"[a-z0-9_]+(\.[a-z0-9_]+)+")
BEGIN, END = "<!-- log events: made from the code -->", "<!-- end of log events -->"
_LOGGER = re.compile(r"(?:.*\.)?_?log(?:ger)?(?:\.bind\(.*\))?")
_MAY_LOG = re.compile(
    rf"\.\s*(?:{'|'.join(METHODS)})\b|\bLogLine\b"
)  # reading is quicker than parsing
_ROW = re.compile(r"^\| `([^`]+)` \|[^|]*\|[^|]*\| (.*) \|$", re.MULTILINE)


@dataclass(slots=True)
class LoggedEvent:
    """One key: the levels it is logged at and the values that go with it."""

    levels: set[str] = field(default_factory=set[str])
    values: list[str] = field(default_factory=list[str])


def log_calls(source: Path) -> Iterator[tuple[Path, ast.Call, str]]:
    """Yield every call of a logger's method: the file, the call and the level."""
    for path in sorted(source.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if _MAY_LOG.search(text) else ():
            if not isinstance(node, ast.Call):
                continue
            match node:
                case ast.Call(
                    func=ast.Name(id="LogLine"), args=[ast.Constant(value=str(level)), key, values]
                ):  # a line that a state machine asks its driver to log
                    yield path, _call(node, key, values), level
                case _:
                    pass
            if not isinstance(node.func, ast.Attribute):
                continue
            level = node.func.attr
            if level in METHODS and _LOGGER.fullmatch(ast.unparse(node.func.value)):
                yield path, node, "error" if level == "exception" else level


def _call(line: ast.Call, key: ast.expr, values: ast.expr) -> ast.Call:
    """Return a `LogLine` as the logger call that it becomes."""
    names = values.keys if isinstance(values, ast.Dict) else []
    keywords = [
        ast.keyword(name.value, name)
        for name in names
        if isinstance(name, ast.Constant) and isinstance(name.value, str)
    ]
    return ast.copy_location(ast.Call(line.func, [key], keywords), line)


def key_of(call: ast.Call) -> str | None:
    """Return the key of a logger call; None when its event is no literal in the form of a key."""
    match call.args:
        case [ast.Constant(value=str(key))] if KEY.fullmatch(key):
            return key
        case _:
            return None


def logged_events(source: Path) -> dict[str, LoggedEvent]:
    """Return all events that the code logs, by key."""
    found: dict[str, LoggedEvent] = {}
    for _, call, level in log_calls(source):
        key = key_of(call)
        if key is None:
            continue
        event = found.setdefault(key, LoggedEvent())
        event.levels.add(level)
        for one in call.keywords:
            if one.arg not in {None, "exc_info", *event.values}:
                event.values.append(str(one.arg))
    return dict(sorted(found.items()))


def meanings(page: str) -> dict[str, str]:
    """Return what the page says about each event."""
    return dict(_ROW.findall(page))


def rendered(events: Mapping[str, LoggedEvent], known: Mapping[str, str]) -> str:
    """Return the table, with the marks around it; an event not described yet has an empty cell."""
    rows = [BEGIN, "", "| Event | Level | Values | Logged when |", "|---|---|---|---|"]
    for key, event in events.items():
        levels = ", ".join(level for level in METHODS if level in event.levels)
        values = ", ".join(f"`{one}`" for one in event.values) or "none"
        rows.append(f"| `{key}` | {levels} | {values} | {known.get(key, '')} |")
    return "\n".join([*rows, "", END])


def rewritten(page: str, source: Path) -> str:
    """Return the page with its table made anew."""
    head, rest = page.split(BEGIN)
    tail = rest.split(END)[1]
    return head + rendered(logged_events(source), meanings(page)) + tail


def rewrite(page: Path, source: Path) -> None:
    """Put the table into the page, in place of the old one."""
    page.write_text(rewritten(page.read_text(encoding="utf-8"), source), encoding="utf-8")


__all__ = ["key_of", "log_calls", "logged_events", "meanings", "rewrite", "rewritten"]
