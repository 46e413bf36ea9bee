"""`InspectedStack`: frames, scopes and values of a stopped program, through its inspector."""

from __future__ import annotations

from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.dialects import Ask, Dialect
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.inspector_scripts import LoadedScripts
from kaged.toolbox.dap.inspector_values import Handles, declared_names, describe, members

MAX_FRAMES: Final = 10_000
MAX_MEMBERS: Final = 501
_FIRST_MEMBERS: Final = """function (most) {
  const keys = Reflect.ownKeys(this);
  if (keys.length <= most) return this;
  const some = Array.isArray(this) ? [] : Object.create(Object.getPrototypeOf(this));
  for (const key of keys.slice(0, most))
    if (key !== "length")
      Object.defineProperty(some, key, Object.getOwnPropertyDescriptor(this, key));
  return some;
}"""


class InspectedStack:
    """What can be looked at while the program stands still. All of it dies when it goes on."""

    def __init__(self, dialect: Dialect, scripts: LoadedScripts, ask: Ask) -> None:
        self._dialect = dialect
        self._scripts = scripts
        self._ask = ask
        self._handles = Handles()
        self._frames: list[JsonObject] = []
        self._generation = 0

    def forget(self) -> None:
        """Forget everything: the program goes on."""
        self._frames = []
        self._handles.clear()
        self._generation += 1

    def stopped(self, frames: JsonValue) -> None:
        """Take the frames of a stop."""
        self.forget()
        listed = frames if isinstance(frames, list) else []
        self._frames = [one for one in listed[:MAX_FRAMES] if isinstance(one, dict)]

    async def stack_trace(self, arguments: JsonObject) -> JsonObject:
        """Answer `stackTrace`."""
        levels = arguments.get("levels")
        shown = self._frames[: levels if type(levels) is int and levels > 0 else None]
        frames: list[JsonValue] = []
        for position, frame in enumerate(shown):
            location = frame.get("location")
            where = location if isinstance(location, dict) else {}
            line, column = self._scripts.written(where)
            script = self._scripts.find(where)
            name = frame.get("functionName")
            entry: JsonObject = {
                "id": self._generation * MAX_FRAMES + position,
                "name": name if isinstance(name, str) and name else "(anonymous)",
                "line": line + 1,
                "column": column + 1,
            }
            if script is not None and script.path is not None:
                entry["source"] = {"path": script.path}
            frames.append(entry)
        return {"stackFrames": frames, "totalFrames": len(self._frames)}

    def _frame(self, arguments: JsonObject) -> JsonObject:
        number = arguments.get("frameId")
        generation, position = divmod(number, MAX_FRAMES) if type(number) is int else (-1, 0)
        if generation != self._generation or position >= len(self._frames):
            raise DapRequestFailed("the program has continued; there is no such frame any more")
        return self._frames[position]

    async def scopes(self, arguments: JsonObject) -> JsonObject:
        """Answer `scopes`."""
        frame = self._frame(arguments)
        return {
            "scopes": [
                {
                    "name": one.name,
                    "presentationHint": one.hint,
                    # Scopes are not trimmed: they cannot be handed to a function.
                    "variablesReference": self._handles.number(
                        one.object_id, whole=True, module=frame if one.unlisted else None
                    ),
                    "expensive": one.hint == "global",
                }
                for one in self._dialect.scopes(frame)
            ]
        }

    async def variables(self, arguments: JsonObject) -> JsonObject:
        """Answer `variables`."""
        handle = self._handles.find(arguments.get("variablesReference"))
        object_id = handle.object_id
        if handle.module is not None:
            object_id = await self._collect(handle.module) or object_id
        elif not handle.whole:
            body = await self._ask(
                "Runtime.callFunctionOn",
                {
                    "objectId": object_id,
                    "functionDeclaration": _FIRST_MEMBERS,
                    "arguments": [{"value": MAX_MEMBERS}],
                },
            )
            result = body.get("result")
            found = result.get("objectId") if isinstance(result, dict) else None
            if isinstance(found, str) and self._dialect.thrown(body) is None:
                object_id = found
        listed = await self._dialect.properties(self._ask, object_id)
        return {"variables": members(listed, self._handles)}

    async def _collect(self, frame: JsonObject) -> str | None:
        """Put what a module declares into one object, by the names that its code shows."""
        location = frame.get("location")
        number = location.get("scriptId") if isinstance(location, dict) else None
        source = (await self._ask("Debugger.getScriptSource", {"scriptId": number})).get(
            "scriptSource"
        )
        tries = "".join(
            f"try {{ all[{name!r}] = {name} }} catch {{}}"
            for name in declared_names(source if isinstance(source, str) else "")
        )
        body = await self._ask(
            "Debugger.evaluateOnCallFrame",
            {
                "callFrameId": frame.get("callFrameId"),
                "expression": f"((all) => {{ {tries} return all; }})({{}})",
            },
        )
        result = body.get("result")
        found = result.get("objectId") if isinstance(result, dict) else None
        return found if isinstance(found, str) and self._dialect.thrown(body) is None else None

    async def evaluate(self, arguments: JsonObject) -> JsonObject:
        """Answer `evaluate`."""
        frame = self._frame(arguments)
        body = await self._ask(
            "Debugger.evaluateOnCallFrame",
            {
                "callFrameId": frame.get("callFrameId"),
                "expression": arguments.get("expression"),
                "generatePreview": True,
            },
        )
        thrown = self._dialect.thrown(body)
        if thrown is not None:
            raise DapRequestFailed(f"evaluate: {thrown}", detail={"message": thrown})
        result = body.get("result")
        shown = describe("", result if isinstance(result, dict) else {}, self._handles)
        return {**shown, "result": shown["value"]}
