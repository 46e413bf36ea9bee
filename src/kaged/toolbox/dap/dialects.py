"""`NodeDialect`, `BunDialect`: how one JavaScript engine's inspector differs from another's.

Node speaks the protocol of V8, Bun that of WebKit.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias
from urllib.parse import quote, unquote, urlsplit

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.toolbox.dap.errors import DapRequestFailed

Ask: TypeAlias = Callable[[str, JsonObject], Awaitable[JsonObject]]
"""Asks the engine: a method and its parameters."""

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


@dataclass(frozen=True, slots=True)
class ScopeView:
    """A scope of a frame: `hint` is local, closure or global.

    `unlisted` says that the engine does not list what is in it, as Bun's does for modules.
    """

    name: str
    hint: str
    object_id: str
    unlisted: bool = False


class NodeDialect:
    """What is Node's own. `translates`: every file runs as a translation with other lines."""

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
            if isinstance(one, dict) and (object_id := _object_id(one)) is not None
        ]

    async def properties(self, ask: Ask, object_id: str) -> JsonValue:
        """List a value's own properties."""
        return (await _own_properties(ask, object_id)).get("result")

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


class BunDialect:
    """What is Bun's own. It runs translated code: every place goes through the source map."""

    def __init__(self) -> None:
        self.translates = True
        self._begun = False

    def flags(self) -> list[str]:
        """Open the inspector on a free port under a secret name, and wait.

        Not `--inspect-brk`, with which conditional breakpoints are missed.
        """
        return ["--inspect-wait=127.0.0.1:0/{token}"]

    async def prepare(self, ask: Ask) -> None:
        """Switch the debugger on."""
        await ask("Inspector.enable", {})
        await ask("Runtime.enable", {})
        await ask("Debugger.enable", {})
        await ask("Debugger.setBreakpointsActive", {"active": True})
        await ask("Debugger.setPauseOnDebuggerStatements", {"enabled": True})
        with contextlib.suppress(DapRequestFailed):  # older ones cannot
            pattern = "^(node|bun|internal|builtin):"
            await ask(
                "Debugger.setShouldBlackboxURL",
                {"url": pattern, "shouldBlackbox": True, "caseSensitive": True, "isRegex": True},
            )

    async def go(self, ask: Ask, *, stop: bool) -> None:
        """Begin, with a pause at the first statement if wanted."""
        self._begun = not stop
        if stop:
            await ask("Debugger.pause", {})
        await ask("Inspector.initialized", {})

    def url(self, path: str) -> str:
        """Return a file's URL as Bun writes it: the plain path."""
        return path

    def path(self, url: str) -> str | None:
        """Return the file of an address."""
        return url if url.startswith("/") else None

    def breakpoint(self, url: str, line: int, column: int | None, condition: str) -> JsonObject:
        """Write the parameters of a breakpoint."""
        params: JsonObject = {"url": url, "lineNumber": line, "columnNumber": column or 0}
        return {**params, "options": {"condition": condition}} if condition else params

    def reason(self, paused: JsonObject) -> str | None:
        """Return why Bun stopped; the first pause on a statement is the requested entry."""
        said = paused.get("reason")
        if said == "PauseOnNextStatement" and not self._begun:
            self._begun = True
            return "entry"
        return {"Breakpoint": "breakpoint", "exception": "exception"}.get(str(said))

    def hits(self, paused: JsonObject) -> list[JsonValue]:
        """Return the breakpoint of a stop."""
        data = paused.get("data")
        found = data.get("breakpointId") if isinstance(data, dict) else None
        return [] if found is None else [found]

    def scopes(self, frame: JsonObject) -> list[ScopeView]:
        """List a frame's scopes. WebKit calls a function's own ones closures like the others."""
        chain = frame.get("scopeChain")
        found: list[ScopeView] = []
        own: JsonValue = None
        seen = False
        for one in chain if isinstance(chain, list) else []:
            if not isinstance(one, dict) or (object_id := _object_id(one)) is None:
                continue
            kind = str(one.get("type", ""))
            if kind.startswith("global"):
                hint = "global"
            elif kind == "closure":
                place: JsonValue = {"name": one.get("name"), "at": one.get("location")}
                if not seen:
                    own, seen = place, True
                hint = "local" if place == own else "closure"
            else:
                hint = "closure" if seen else "local"
            unlisted = kind == "closure" and hint == "local" and "location" not in one
            found.append(ScopeView(hint.capitalize(), hint, object_id, unlisted))
        return found

    async def properties(self, ask: Ask, object_id: str) -> JsonValue:
        """List a value's own properties."""
        return (await _own_properties(ask, object_id)).get("properties")

    def thrown(self, result: JsonObject) -> str | None:
        """Return what an evaluation threw."""
        if result.get("wasThrown") is not True:
            return None
        value = result.get("result")
        said = value.get("description") if isinstance(value, dict) else None
        return str(said or "it threw").partition("\n")[0]

    def ends(self, method: str, params: JsonObject) -> bool:
        """Bun goes by itself: the relay asks it not to wait."""
        del method, params
        return False


Dialect: TypeAlias = NodeDialect | BunDialect


def _object_id(scope: JsonObject) -> str | None:
    found = scope.get("object")
    name = found.get("objectId") if isinstance(found, dict) else None
    return name if isinstance(name, str) else None


async def _own_properties(ask: Ask, object_id: str) -> JsonObject:
    wanted: JsonObject = {"ownProperties": True, "generatePreview": True}
    return await ask("Runtime.getProperties", {"objectId": object_id, **wanted})
