"""`ToolList`: the tools of one agent as MCP clients are told about them, made once per change."""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Final

from kaged.kernel.requirements import CapabilityRequirement, NetRequirement
from kaged.serve.mcp.results import output_schema
from kaged.tools import ToolSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kaged.base import JsonObject
    from kaged.serve.mcp.client_session import ListedTool
    from kaged.tools.registry import RegisteredTool

PAGE: Final = 200
META_NAME: Final = "kaged/name"
META_SCHEMA: Final = "kaged/schema_hash"
MAX_NAME_CHARS: Final = 64
HASH_CHARS: Final = 8
RUNS_PROGRAMS: Final = frozenset({"shell", "exec"})
REPEATABLE: Final = frozenset({"file.write", "search.ast_rewrite"})
"""Tools that change something, and change nothing more when they are called again."""

RECORDS: Final = "kaged"
"""The namespace of issues, todos and questions: they add to the record and destroy nothing."""

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_-]")


class ToolList:
    """A listing with its names; `digest` is another whenever a client would see another list."""

    def __init__(self, tools: Sequence[ListedTool], *, returns: bool) -> None:
        own = [one.entry.name for one in tools if one.entry.source == ToolSource.BUILTIN.value]
        outside = [one.entry.name for one in tools if one.entry.source != ToolSource.BUILTIN.value]
        self.names = NameMap(own, outside)
        self.tools: list[JsonObject] = [
            _listed(one, self.names.safe(one.entry.name), returns=returns) for one in tools
        ]
        self.digest = hashlib.sha256(json.dumps(self.tools, sort_keys=True).encode()).hexdigest()

    def page(self, cursor: str | None) -> tuple[list[JsonObject], str | None]:
        """Return a page; a cursor that was never given out starts at the beginning."""
        start = int(cursor) if cursor is not None and cursor.isdigit() and len(cursor) < 8 else 0
        end = start + PAGE
        return self.tools[start:end], str(end) if end < len(self.tools) else None


def _listed(tool: ListedTool, name: str, *, returns: bool) -> JsonObject:
    entry = tool.entry
    listed: JsonObject = {
        "name": name,
        "title": entry.name,
        "description": entry.definition.description,
        "inputSchema": tool.parameters,
        "annotations": annotations_of(entry),
        "_meta": {META_NAME: entry.name, META_SCHEMA: entry.schema_hash},
    }
    promised = output_schema(entry.definition.returns) if returns else None
    if promised is not None:
        listed["outputSchema"] = promised
    return listed


class NameMap:
    """Maps the names of one agent's tools to names that MCP clients take, and back.

    Many clients hand names on to models, which take letters, digits, `_` and `-` and no more than
    64 characters. `file.read` becomes `file_read`; where two would become the same, or one is too
    long, the later one gets a piece of its hash. Built-in tools are named first, so that no plugin
    or outside server ever changes what a built-in is called.
    """

    def __init__(self, own: Iterable[str], outside: Iterable[str] = ()) -> None:
        self._safe: dict[str, str] = {}
        self._names: dict[str, str] = {}
        for name in (*sorted(own), *sorted(outside)):
            safe = self._free(name)
            self._safe[name] = safe
            self._names[safe] = name

    def safe(self, name: str) -> str:
        """Return the name that clients see. Raises KeyError for a tool that is not in the map."""
        return self._safe[name]

    def tool(self, asked: str) -> str:
        """Return the tool that a client means; any other name stands for itself.

        An unknown name comes back unchanged: dispatch says what is wrong with it.
        """
        return self._names.get(asked, asked)

    def _free(self, name: str) -> str:
        safe = _UNSAFE.sub("_", name)
        if len(safe) <= MAX_NAME_CHARS and safe not in self._names:
            return safe
        digest = hashlib.sha256(name.encode()).hexdigest()
        for size in range(HASH_CHARS, len(digest) + 1):
            tail = digest[: min(size, MAX_NAME_CHARS - 1)]
            wanted = f"{safe[: MAX_NAME_CHARS - len(tail) - 1]}_{tail}"
            if wanted not in self._names:
                return wanted
        raise KeyError(name)  # two names with one SHA-256


def annotations_of(entry: RegisteredTool) -> JsonObject:
    """Return the four hints of MCP. They err on the side of caution and never promise too much.

    What a plugin, an outside server or a shell command does is not known here, so these count as
    destructive and open to the world.
    """
    definition = entry.definition
    unknown = definition.source is ToolSource.PLUGIN
    runs = any(
        isinstance(one, CapabilityRequirement) and one.name in RUNS_PROGRAMS
        for one in definition.requires
    )
    reaches_net = entry.tool.reaches_net or any(
        isinstance(one, NetRequirement) for one in definition.requires
    )
    read_only = entry.tool.changes is False and not unknown and not runs
    return {
        "title": entry.name,
        "readOnlyHint": read_only,
        "destructiveHint": not read_only and definition.namespace != RECORDS,
        "idempotentHint": read_only or entry.name in REPEATABLE,
        "openWorldHint": unknown or runs or reaches_net,
    }
