"""`ToolList`: the tools of one agent as clients are told about them, made once per change."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

from kaged.serve.mcp.annotations import annotations_of
from kaged.serve.mcp.names import NameMap
from kaged.serve.mcp.results import output_schema
from kaged.tools import ToolSource

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kaged.base import JsonObject
    from kaged.serve.mcp.client_session import ListedTool

PAGE: Final = 200
META_NAME: Final = "kaged/name"
META_SCHEMA: Final = "kaged/schema_hash"


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
