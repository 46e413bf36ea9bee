"""`InspectorAdapter`: a JavaScript engine's own inspector, spoken to as a debug adapter.

Node and Bun need no adapter beside them: both listen for a debugger themselves, in two protocols
that share most of their words. What differs is a `Dialect`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable
from typing import Final, cast

from kaged.base import JsonObject, JsonValue, Tasks
from kaged.base.log import get_logger
from kaged.toolbox.dap.dialects import Dialect
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.toolbox.dap.inspector_breakpoints import InspectorBreakpoint, InspectorBreakpoints
from kaged.toolbox.dap.inspector_scripts import LoadedScripts
from kaged.toolbox.dap.inspector_stack import InspectedStack
from kaged.toolbox.dap.protocol import REQUEST_LIMIT_S, DapConnection, OnEvent, Taking

THREAD: Final = 1
MOVE_S: Final = 5.0
_CAPABILITIES: Final[JsonObject] = {
    "supportsConfigurationDoneRequest": True,
    "supportsConditionalBreakpoints": True,
    "supportsHitConditionalBreakpoints": True,
    "supportsLogPoints": True,
    "supportsLoadedSourcesRequest": True,
}

_log = get_logger(__name__)


class InspectorAdapter:
    """Takes DAP requests, asks a runtime's inspector through a relay, and tells DAP events."""

    def __init__(self, dialect: Dialect, on_event: OnEvent) -> None:
        self._dialect = dialect
        self._on_event = on_event
        self._relay: DapConnection | None = None
        self._scripts = LoadedScripts(dialect)
        self._breakpoints = InspectorBreakpoints()
        self._stack = InspectedStack(dialect, self._scripts, self._ask)
        self._moving: str | None = None
        self._stop_on_entry = True
        self._attached = False
        self._entered = False
        self._gone = False
        self._over = False
        self._tasks = Tasks("inspector", _failed)
        self._commands: dict[str, Callable[[JsonObject], Awaitable[JsonObject]]] = {
            "initialize": self._initialize,
            "launch": self._launch,
            "attach": self._attach,
            "configurationDone": self._configured,
            "setBreakpoints": self._set_breakpoints,
            "threads": self._threads,
            "stackTrace": self._stack.stack_trace,
            "scopes": self._stack.scopes,
            "variables": self._stack.variables,
            "evaluate": self._stack.evaluate,
            "continue": lambda _: self._move("resume", "continue"),
            "next": lambda _: self._move("stepOver", "step"),
            "stepIn": lambda _: self._move("stepInto", "step"),
            "stepOut": lambda _: self._move("stepOut", "step"),
            "pause": lambda _: self._move("pause", "pause"),
            "loadedSources": self._loaded_sources,
            "disconnect": self._disconnect,
        }

    def use(self, relay: DapConnection) -> None:
        """Take the relay that carries the inspector's messages."""
        self._relay = relay

    @property
    def is_open(self) -> bool:
        """Whether requests can still be sent."""
        return self._relay is not None and self._relay.is_open

    async def request(
        self,
        command: str,
        arguments: JsonObject | None = None,
        limit_s: float = REQUEST_LIMIT_S,
        taking: Taking | None = None,
    ) -> JsonObject:
        """Do what a DAP request asks for. Raises DapRequestFailed and DapSessionEnded."""
        del limit_s  # every single question to the engine has its own
        run = self._commands.get(command)
        if run is None and "." not in command:
            raise DapRequestFailed(f"{command}: the inspector has no such request")
        given = arguments or {}
        body = await (self._ask(command, given) if run is None else run(given))
        if taking is not None:
            taking(body)
        return body

    async def close(self) -> None:
        """Let go of the relay."""
        await self._tasks.close()
        if self._relay is not None:
            await self._relay.close()

    async def _ask(
        self, method: str, params: JsonObject, limit_s: float = REQUEST_LIMIT_S
    ) -> JsonObject:
        if self._relay is None:
            raise DapSessionEnded("the program is not there", fix="launch again")
        asked: JsonObject = {"method": method, "params": params}
        return await self._relay.request("inspector", asked, limit_s)

    # -- beginning and ending --------------------------------------------------------------------

    async def _initialize(self, arguments: JsonObject) -> JsonObject:
        del arguments
        return dict(_CAPABILITIES)

    async def _launch(self, arguments: JsonObject) -> JsonObject:
        self._stop_on_entry = arguments.get("stopOnEntry") is not False
        flags = cast("list[str]", arguments.get("runtimeArgs") or [])
        args = cast("list[str]", arguments.get("args") or [])
        program = str(arguments["program"])
        await self._join(
            "launch",
            {
                "argv": [*flags, *self._dialect.flags(), program, *args],
                "cwd": arguments["cwd"],
                "env": arguments.get("env") or {},
            },
        )
        return {}

    async def _attach(self, arguments: JsonObject) -> JsonObject:
        self._attached = True
        await self._join("attach", {"host": arguments["host"], "port": arguments["port"]})
        return {}

    async def _join(self, command: str, arguments: JsonObject) -> None:
        assert self._relay is not None  # given before anything is asked
        await self._relay.request(command, arguments)
        await self._dialect.prepare(self._ask)
        self._on_event("initialized", {})

    async def _configured(self, arguments: JsonObject) -> JsonObject:
        del arguments
        if not self._attached:
            try:
                await self._dialect.go(self._ask, stop=self._stop_on_entry)
            except DapRequestFailed:
                if not self._gone:
                    raise
                # It ended at once, as a script does that cannot be parsed; its exit follows.
        return {}

    async def _disconnect(self, arguments: JsonObject) -> JsonObject:
        # What we launched ends with the relay. What was there before goes on, unless it must not.
        if self._attached and arguments.get("terminateDebuggee") is True and not self._over:
            with contextlib.suppress(DapRequestFailed, DapSessionEnded):
                await self._ask("Runtime.evaluate", {"expression": "process.exit(143)"})
        return {}

    # -- breakpoints -----------------------------------------------------------------------------

    async def _set_breakpoints(self, arguments: JsonObject) -> JsonObject:
        source = arguments.get("source")
        path = str(source.get("path", "")) if isinstance(source, dict) else ""
        now, new, old = self._breakpoints.change(path, arguments.get("breakpoints"))
        for one in old:
            if one.engine_id is not None:
                await self._ask("Debugger.removeBreakpoint", {"breakpointId": one.engine_id})
        for one in new:
            await self._place(one)
        return {"breakpoints": [one.as_json() for one in now]}

    async def _place(self, one: InspectorBreakpoint) -> None:
        script = self._scripts.of_path(one.path)
        line, column = one.line - 1, None
        if script is not None and script.map is not None:
            at = script.map.running(line)
            if at is None:
                one.refusal = "there is no code on this line or after it"
                return
            line, column = at
        url = self._dialect.url(one.path) if script is None else script.url
        if script is None and self._dialect.translates:
            return  # lines of a file that is translated are only known once it is loaded
        try:
            body = await self._ask(
                "Debugger.setBreakpointByUrl",
                self._dialect.breakpoint(url, line, column, one.condition),
            )
        except DapRequestFailed as error:
            one.refusal = error.message
            return
        name = body.get("breakpointId")
        one.engine_id = name if isinstance(name, str) else None
        locations = body.get("locations")
        if isinstance(locations, list) and locations and isinstance(locations[0], dict):
            one.actual = self._scripts.written(locations[0])[0] + 1

    async def _place_late(self, path: str) -> None:
        for one in self._breakpoints.of(path):
            if one.engine_id is None:
                await self._place(one)
                self._on_event("breakpoint", {"reason": "changed", "breakpoint": one.as_json()})

    def _resolved(self, params: JsonObject) -> None:
        one = self._breakpoints.by_engine(params.get("breakpointId"))
        location = params.get("location")
        if one is not None and isinstance(location, dict):
            one.actual = self._scripts.written(location)[0] + 1
            self._on_event("breakpoint", {"reason": "changed", "breakpoint": one.as_json()})

    # -- moving ----------------------------------------------------------------------------------

    async def _move(self, method: str, how: str) -> JsonObject:
        self._moving = how
        if method != "pause":
            self._stack.forget()
        try:
            await self._ask(f"Debugger.{method}", {}, MOVE_S)
        except DapRequestFailed as error:
            if self._gone or "did not answer" not in error.message:
                raise
            raise DapRequestFailed(
                f"the program did not take {how} within {MOVE_S:g} seconds: it does not yield",
                fix="disconnect, and set a breakpoint in the loop before you continue",
            ) from error
        return {}

    def _paused(self, params: JsonObject) -> None:
        self._stack.stopped(params.get("callFrames"))
        first, self._entered = not self._entered, True
        reason = self._dialect.reason(params)
        if first and reason == "entry" and not self._stop_on_entry:
            self._tasks.start(self._ask("Debugger.resume", {}), "go on from the entry")
            return
        found = map(self._breakpoints.by_engine, self._dialect.hits(params))
        hits: list[JsonValue] = [one.number for one in found if one is not None]
        if hits:
            reason = "breakpoint"
        body: JsonObject = {
            "reason": reason or self._moving or "debugger statement",
            "threadId": THREAD,
            "allThreadsStopped": True,
        }
        if body["reason"] == "continue":
            body["reason"] = "debugger statement"
        if hits:
            body["hitBreakpointIds"] = hits
        self._moving = None
        self._on_event("stopped", body)

    # -- looking ---------------------------------------------------------------------------------

    async def _threads(self, arguments: JsonObject) -> JsonObject:
        del arguments
        return {"threads": [{"id": THREAD, "name": "main"}]}

    async def _loaded_sources(self, arguments: JsonObject) -> JsonObject:
        del arguments
        paths = self._scripts.paths()
        return {"sources": [{"name": one.rpartition("/")[2], "path": one} for one in paths]}

    # -- hearing ---------------------------------------------------------------------------------

    def heard(self, event: str, body: JsonObject) -> None:
        """Take an event of the relay's."""
        match event:
            case "inspector":
                params = body.get("params")
                self._told(str(body.get("method")), params if isinstance(params, dict) else {})
            case "output":
                self._on_event("output", body)
            case "gone":
                self._gone = True
                if self._attached and not self._over:
                    self._over = True
                    self._on_event("terminated", {})
            case "exited":
                self._over = True
                self._on_event("exited", body)
                self._on_event("terminated", {})
            case _:
                _log.debug("inspector.unknown_event", name=event)

    def _told(self, method: str, params: JsonObject) -> None:
        if method == "Debugger.scriptParsed":
            self._parsed(params)
        elif method == "Debugger.paused":
            self._paused(params)
        elif method == "Debugger.breakpointResolved":
            self._resolved(params)
        elif self._dialect.ends(method, params) and self._relay is not None:
            self._tasks.start(self._relay.request("hangup"), "leave the inspector")

    def _parsed(self, params: JsonObject) -> None:
        path = self._scripts.add(params)
        if path is not None and any(one.engine_id is None for one in self._breakpoints.of(path)):
            self._tasks.start(self._place_late(path), f"breakpoints of {path}")


def _failed(name: str, error: BaseException) -> None:
    _log.debug("inspector.task_ended", task=name, error=repr(error))
