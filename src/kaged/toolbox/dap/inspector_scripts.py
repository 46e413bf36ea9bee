"""`LoadedScripts`: the files that an engine has loaded, and where their code was written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from kaged.base import JsonObject
from kaged.toolbox.dap.dialect import Dialect
from kaged.toolbox.dap.source_map import SourceMap

MAX_SCRIPTS: Final = 50_000


@dataclass(frozen=True, slots=True)
class LoadedScript:
    """A loaded file: its path (None for code without one), the engine's name, its map."""

    path: str | None
    url: str
    map: SourceMap | None


class LoadedScripts:
    """What an engine has loaded, by its own numbers."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._known: dict[str, LoadedScript] = {}

    def add(self, params: JsonObject) -> str | None:
        """Take a `Debugger.scriptParsed`; returns the file's path if it has one."""
        url, at = params.get("url"), params.get("sourceMapURL")
        if not isinstance(url, str) or not url or len(self._known) >= MAX_SCRIPTS:
            return None
        path = self._dialect.path(url)
        found = SourceMap.of_url(at) if path is not None and isinstance(at, str) and at else None
        self._known[str(params.get("scriptId"))] = LoadedScript(path, url, found)
        return path

    def find(self, location: JsonObject) -> LoadedScript | None:
        """Return the file that a place is in."""
        return self._known.get(str(location.get("scriptId")))

    def of_path(self, path: str) -> LoadedScript | None:
        """Return the loaded file of a path."""
        return next((one for one in self._known.values() if one.path == path), None)

    def paths(self) -> list[str]:
        """Return the paths of all loaded files, in order."""
        return sorted({one.path for one in self._known.values() if one.path is not None})

    def written(self, location: JsonObject) -> tuple[int, int]:
        """Return the line and column, from 0, at which a place of the running code was written."""
        line, column = location.get("lineNumber"), location.get("columnNumber")
        line = line if type(line) is int else 0
        column = column if type(column) is int else 0
        script = self.find(location)
        if script is None or script.map is None:
            return line, column
        return script.map.written(line, column)
