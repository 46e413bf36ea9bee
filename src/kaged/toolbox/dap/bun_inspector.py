"""`BunDialect`: Bun's inspector, which speaks the protocol of WebKit."""

from __future__ import annotations

import contextlib

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.dialect import Ask, ScopeView
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.node_inspector import object_id_of


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
            if not isinstance(one, dict) or (object_id := object_id_of(one)) is None:
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
        asked: JsonObject = {
            "objectId": object_id,
            "ownProperties": True,
            "generatePreview": True,
        }
        return (await ask("Runtime.getProperties", asked)).get("properties")

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
