"""`NodeDialect`: Node's inspector, which speaks the protocol of V8."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, unquote, urlsplit

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.dialect import Ask, ScopeView

_HINTS: Final = {
    "local": "local",
    "module": "local",
    "block": "local",
    "catch": "local",
    "with": "local",
    "eval": "local",
    "wasm-expression-stack": "local",
    "closure": "closure",
    "script": "global",
    "global": "global",
}


class NodeDialect:
    """What is Node's own."""

    def __init__(self) -> None:
        self.translates = False
        self._context: JsonValue = None

    def flags(self) -> list[str]:
        """Open the inspector on a free port, and keep its secret name off its web page."""
        return ["--inspect-publish-uid=stderr", "--inspect-brk=127.0.0.1:0"]

    async def prepare(self, ask: Ask) -> None:
        """Switch the debugger on; the runtime's own code is stepped over."""
        await ask("Runtime.enable", {})
        await ask("Debugger.enable", {})
        await ask("Debugger.setBlackboxPatterns", {"patterns": ["^node:"]})

    async def go(self, ask: Ask, *, stop: bool) -> None:
        """Begin. `--inspect-brk` always stops first; who does not want that goes on from there."""
        del stop
        await ask("Runtime.runIfWaitingForDebugger", {})

    def url(self, path: str) -> str:
        """Return a file's URL as Node writes it."""
        return "file://" + quote(path, safe="/~!@$&'()*+,;=:-_.")

    def path(self, url: str) -> str | None:
        """Return the file of an address."""
        parts = urlsplit(url)
        return unquote(parts.path) if parts.scheme == "file" else None

    def breakpoint(self, url: str, line: int, column: int | None, condition: str) -> JsonObject:
        """Write the parameters of a breakpoint."""
        params: JsonObject = {"url": url, "lineNumber": line, "condition": condition}
        return params if column is None else {**params, "columnNumber": column}

    def reason(self, paused: JsonObject) -> str | None:
        """Return why Node stopped."""
        said = paused.get("reason")
        if said == "Break on start":
            return "entry"
        return "exception" if said in ("exception", "promiseRejection", "assert") else None

    def hits(self, paused: JsonObject) -> list[JsonValue]:
        """Return the breakpoints of a stop."""
        found = paused.get("hitBreakpoints")
        return found if isinstance(found, list) else []

    def scopes(self, frame: JsonObject) -> list[ScopeView]:
        """List a frame's scopes."""
        chain = frame.get("scopeChain")
        return [
            ScopeView(
                str(one.get("type", "")).capitalize(),
                _HINTS.get(str(one.get("type")), "closure"),
                object_id,
            )
            for one in (chain if isinstance(chain, list) else [])
            if isinstance(one, dict) and (object_id := object_id_of(one)) is not None
        ]

    async def properties(self, ask: Ask, object_id: str) -> JsonValue:
        """List a value's own properties."""
        asked: JsonObject = {
            "objectId": object_id,
            "ownProperties": True,
            "generatePreview": True,
        }
        return (await ask("Runtime.getProperties", asked)).get("result")

    def thrown(self, result: JsonObject) -> str | None:
        """Return what an evaluation threw."""
        details = result.get("exceptionDetails")
        if not isinstance(details, dict):
            return None
        exception = details.get("exception")
        said = exception.get("description") if isinstance(exception, dict) else None
        return str(said or details.get("text") or "it threw").partition("\n")[0]

    def ends(self, method: str, params: JsonObject) -> bool:
        """See the end of the program's own context, at which Node waits for debuggers to leave."""
        if method == "Runtime.executionContextCreated" and self._context is None:
            context = params.get("context")
            self._context = context.get("id") if isinstance(context, dict) else None
        return (
            method == "Runtime.executionContextDestroyed"
            and self._context is not None
            and params.get("executionContextId") == self._context
        )


def object_id_of(scope: JsonObject) -> str | None:
    """Return the name of a scope's object."""
    found = scope.get("object")
    name = found.get("objectId") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None
