"""`ReviewedFiles`: what each run leaves for a person to look at, for its summary."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.tools.outcomes import ToolOutcome

MAX_RUNS: Final = 1000
MAX_PATHS: Final = 200
_WORDS: Final = ("to_review", "taken_back")


class ReviewedFiles:
    """Collects paths while runs go on: files to review, and what was taken back."""

    def __init__(self) -> None:
        self._runs: OrderedDict[str, dict[str, dict[str, None]]] = OrderedDict()

    def note(self, run_id: str, word: str, path: str) -> None:
        """Remember a path of a run; `word` is `to_review` or `taken_back`."""
        if not run_id:
            return
        paths = self._runs.setdefault(run_id, {one: {} for one in _WORDS})[word]
        if len(paths) < MAX_PATHS:
            paths[path.removeprefix("./")] = None
        while len(self._runs) > MAX_RUNS:
            self._runs.popitem(last=False)

    def tool_called(self, outcome: ToolOutcome) -> None:
        """Take the paths from what a command reported."""
        result = outcome.result
        if not isinstance(result, dict) or not outcome.tool_name.startswith("shell."):
            return
        for word in _WORDS:
            listed = result.get(word)
            for one in listed if isinstance(listed, list) else ():
                path = one.get("path") if isinstance(one, dict) else None
                if isinstance(path, str):
                    self.note(outcome.context.run_id, word, path)

    def take(self, run_id: str) -> JsonObject:
        """Return what a run leaves, as members of its summary, and forget it."""
        found = self._runs.pop(run_id, {})
        said: JsonObject = {}
        for word, paths in found.items():
            listed: list[JsonValue] = list(paths)
            if listed:
                said[word] = listed
        return said
