"""`EditDiagnosis`: what a change broke, in the result of the tool that made it.

Only a server that runs already is asked, and not for long: an edit is done when it is done, and its
result never waits for a server to start or fails because of one.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final, TypeAlias, cast

from kaged.base import JsonObject, JsonValue, KagedError
from kaged.toolbox.lsp.bridge import LspBridge
from kaged.toolbox.lsp.diagnostics import describe, problems_of
from kaged.tools import Tool, ToolInvocation
from kaged.workspace import ProjectPath

WAIT_S: Final = 2.0
MAX_FILES: Final = 10
MAX_SHOWN: Final = 20
MAX_REMEMBERED: Final = 1000

FIELD: Final = "diagnostics"
NOTE: Final = (
    "\n\n`diagnostics` lists the errors that are new since the change, if a language server runs "
    "for the file; an empty list means that there are none, no list that none was checked."
)
_SCHEMA: Final[JsonObject] = {"type": "array", "items": {"type": "object"}}

_Errors: TypeAlias = "Counter[tuple[JsonValue, JsonValue]]"
BridgeOf: TypeAlias = "Callable[[ToolInvocation], LspBridge | None]"


class EditDiagnosis:
    """Adds new errors to the results of tools that change files.

    `bridge_of` returns the bridge of a caller's project if there is one, and starts nothing.
    """

    def __init__(self, bridge_of: BridgeOf, wait_s: float = WAIT_S) -> None:
        self._bridge_of = bridge_of
        self._wait_s = wait_s
        self._known: dict[tuple[str, str], _Errors] = {}

    def watch(self, tool: Tool) -> Tool:
        """Return a tool whose results include what its change broke."""
        definition = tool.definition
        properties = cast("JsonObject", definition.returns["properties"])
        returns = {**definition.returns, "properties": {**properties, FIELD: _SCHEMA}}

        async def run(call: ToolInvocation) -> JsonValue:
            unknown = [one for one in call.paths if _key(call, one) not in self._known]
            if unknown:
                await self._look(call, unknown)  # or what was wrong before would count as new
            result = await tool.handler(call)
            if not isinstance(result, dict) or result.get("applied") is False:
                return result
            found = await self._look(call, _changed(call, result))
            return result if found is None else {**result, FIELD: found}

        described = replace(definition, returns=returns, description=definition.description + NOTE)
        return replace(tool, definition=described, handler=run)

    async def _look(
        self, call: ToolInvocation, paths: Iterable[ProjectPath]
    ) -> list[JsonValue] | None:
        """Return the errors that were not reported yet; None when no server looked."""
        bridge = self._bridge_of(call)
        if bridge is None:
            return None
        shown: list[JsonValue] = []
        looked = False
        try:
            async with asyncio.timeout(self._wait_s):
                for path in paths:
                    new = await self._new_errors(call, bridge, path)
                    if new is not None:
                        looked = True
                        shown += new
        # The change is what counts: what a server has to say about it can only be missing.
        except (TimeoutError, KagedError):
            looked = bool(shown)
        return shown[:MAX_SHOWN] if looked else None

    async def _new_errors(
        self, call: ToolInvocation, bridge: LspBridge, path: ProjectPath
    ) -> list[JsonValue] | None:
        claimed = bridge.languages.of(path.resolved)
        if claimed is None or bridge.pool.running(claimed.language) is None:
            return None
        async with bridge.ready(path, call.context.session_id) as ready:
            found = await problems_of(bridge, ready.server, ready.file)
            if not found.complete:
                return None
            described = [describe(item, ready.file, ready.server) for item in found.items]
        errors = [one for one in described if one["severity"] == "error"]
        left = Counter(self._known.get(_key(call, path), Counter()))
        new: list[JsonValue] = []
        for one in errors:
            mark = (one["message"], one["code"])
            if left[mark] > 0:
                left[mark] -= 1
            else:
                new.append({"path": path.relative, **one})
        self._remember(call, path, Counter((one["message"], one["code"]) for one in errors))
        return new

    def _remember(self, call: ToolInvocation, path: ProjectPath, errors: _Errors) -> None:
        key = _key(call, path)
        self._known.pop(key, None)
        self._known[key] = errors
        if len(self._known) > MAX_REMEMBERED:
            del self._known[next(iter(self._known))]


def _key(call: ToolInvocation, path: ProjectPath) -> tuple[str, str]:
    return call.context.project_id, path.resolved


def _changed(call: ToolInvocation, result: JsonObject) -> list[ProjectPath]:
    """Return the files that a result says were changed."""
    files = result.get("file_changes")
    if not isinstance(files, list):
        return list(call.paths)
    names = [one.get("path") for one in files[:MAX_FILES] if isinstance(one, dict)]
    return [call.workspace.resolve(name) for name in names if isinstance(name, str)]
