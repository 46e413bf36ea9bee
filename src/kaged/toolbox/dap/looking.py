"""Looking: threads, stack, scopes, variables, expressions."""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.session import DebugSession
from kaged.toolbox.dap.view import View, objects_in
from kaged.tools import InvalidToolParams

VALUE_CHARS: Final = 4000
MAX_VARIABLES: Final = 500
MAX_DEPTH: Final = 16
_SCOPES: Final = {
    "local": ("local", "locals", "block"),
    "closure": ("closure",),
    "global": ("global", "globals"),
}


async def threads(view: View) -> JsonValue:
    """List the program's threads."""
    return {"threads": await view.threads()}


async def stack_trace(view: View) -> JsonValue:
    """Show the stack of a thread."""
    session, args = view.session, view.args
    session.require_stopped()
    thread = await view.thread_id(args.get("thread_id"))
    levels = cast("int", args.get("levels", 20))
    frames = await session.frames.top(thread, levels, session.ask)
    shown: list[JsonValue] = []
    for position, frame in enumerate(frames):
        where = await view.place(frame)
        where.pop("source_preview", None)
        one: JsonObject = {"id": position, "name": str(frame.get("name", "")), **where}
        if isinstance(frame.get("instructionPointerReference"), str):
            one["instruction_reference"] = frame["instructionPointerReference"]
        shown.append(one)
    return {"frames": shown, "total_frames": await session.frames.count(thread, session.ask)}


async def scopes(view: View) -> JsonValue:
    """List the scopes of a frame."""
    found = await _scopes(view)
    return {
        "scopes": [
            {
                "name": str(one.get("name", "")),
                "variables_reference": one.get("variablesReference", 0),
                "expensive": one.get("expensive") is True,
            }
            for one in found
        ]
    }


async def variables(view: View) -> JsonValue:
    """Show the variables of a scope, or the members of one of them."""
    session, args = view.session, view.args
    wanted = _SCOPES[cast("str", args.get("scope", "local"))]
    members: list[JsonObject] = []
    for scope in await _scopes(view):
        hint = scope.get("presentationHint")
        name = str(scope.get("name", "")).lower()
        if hint in wanted or name.partition(":")[0].strip() in wanted:
            members += await _children(session, scope)
    prefix = ""
    expand = args.get("expand")
    if isinstance(expand, str):
        for part in _parts(expand, members):
            one = next((each for each in members if each.get("name") == part), None)
            if one is None or not _expandable(one):
                raise InvalidToolParams.of_field(
                    "expand", f"there is no structured {prefix + part!r}"
                )
            members = await _children(session, one)
            prefix = f"{prefix}{part}."
    needle = args.get("filter")
    shown: list[JsonValue] = [
        _describe(one, prefix)
        for one in members
        if not isinstance(needle, str) or needle in str(one.get("name", ""))
    ]
    result: JsonObject = {"variables": shown[:MAX_VARIABLES]}
    if len(shown) > MAX_VARIABLES:
        # How many there are in all the adapter may not have said either.
        result["truncated"] = True
    return result


async def evaluate(view: View) -> JsonValue:
    """Evaluate an expression in a frame of the debugged program."""
    args = view.args
    body = await view.session.ask(
        "evaluate",
        {
            "expression": args["expression"],
            "frameId": (await _frame(view)).get("id"),
            "context": args.get("context", "watch"),
        },
    )
    kind = body.get("type")
    answer: JsonObject = {
        "result": str(body.get("result", ""))[:VALUE_CHARS],
        "type": kind if isinstance(kind, str) else None,
    }
    if isinstance(body.get("memoryReference"), str):
        answer["memory_reference"] = body["memoryReference"]
    return answer


async def _frame(view: View) -> JsonObject:
    return await view.session.frame(cast("int", view.args.get("frame_id", 0)))


async def _scopes(view: View) -> list[JsonObject]:
    asked: JsonObject = {"frameId": (await _frame(view)).get("id")}
    return objects_in((await view.session.ask("scopes", asked)).get("scopes"))


async def _children(session: DebugSession, one: JsonObject) -> list[JsonObject]:
    reference = one.get("variablesReference")
    if type(reference) is not int or reference == 0:
        return []
    asked: JsonObject = {"variablesReference": reference}
    if session.supports("supportsVariablePaging") and isinstance(one.get("indexedVariables"), int):
        asked |= {"start": 0, "count": MAX_VARIABLES}
    try:
        body = await session.ask("variables", asked)
    except DapRequestFailed:
        if one.get("expensive") is True:
            return []  # such scopes may refuse; the others still count
        raise
    return objects_in(body.get("variables"))


def _parts(path: str, members: list[JsonObject]) -> list[str]:
    """Split a dotted path; a name that itself holds dots counts whole."""
    if any(one.get("name") == path for one in members):
        return [path]
    parts = path.split(".")
    if len(parts) > MAX_DEPTH:
        raise InvalidToolParams.of_field("expand", f"goes deeper than {MAX_DEPTH} levels")
    return parts


def _describe(one: JsonObject, prefix: str) -> JsonObject:
    kind = one.get("type")
    shown: JsonObject = {
        "name": prefix + str(one.get("name", "")),
        "value": str(one.get("value", ""))[:VALUE_CHARS],
        "type": kind if isinstance(kind, str) else None,
    }
    if _expandable(one):
        shown["expandable"] = True
    if isinstance(one.get("memoryReference"), str):
        shown["memory_reference"] = one["memoryReference"]
    return shown


def _expandable(one: JsonObject) -> bool:
    reference = one.get("variablesReference")
    return type(reference) is int and reference > 0
