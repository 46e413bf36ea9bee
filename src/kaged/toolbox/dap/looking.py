"""Looking: threads, stack, scopes, variables, expressions, memory, code."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.view import View, path_of
from kaged.tools.errors import InvalidParams

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.toolbox.dap.session import DebugSession
    from kaged.tools.call import ToolCall

VALUE_CHARS: Final = 4000
MAX_VARIABLES: Final = 500
MAX_DEPTH: Final = 16
_SCOPES: Final = {
    "local": ("local", "locals", "block"),
    "closure": ("closure",),
    "global": ("global", "globals"),
}
_LIFECYCLE: Final = frozenset(
    {
        "initialize",
        "launch",
        "attach",
        "configurationDone",
        "disconnect",
        "terminate",
        "restart",
    }
)


async def threads(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """List the program's threads."""
    session = bridge.session(call)
    return {"threads": await View(call, bridge, session).threads()}


async def stack_trace(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Show the stack of a thread."""
    session = bridge.session(call)
    session.require_stopped()
    view = View(call, bridge, session)
    thread = await view.thread_id(call.args.get("thread_id"))
    frames, total = await session.stack(thread, cast("int", call.args.get("levels", 20)))
    shown: list[JsonValue] = []
    for position, frame in enumerate(frames):
        where = await view.place(frame)
        where.pop("source_preview", None)
        shown.append({"id": position, "name": str(frame.get("name", "")), **where})
    return {"frames": shown, "total_frames": total}


async def scopes(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """List the scopes of a frame."""
    session = bridge.session(call)
    found = await _scopes(session, cast("int", call.args.get("frame_id", 0)))
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


async def variables(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Show the variables of a scope, or the members of one of them."""
    session = bridge.session(call)
    args = call.args
    wanted = _SCOPES[cast("str", args.get("scope", "local"))]
    listed = await _scopes(session, cast("int", args.get("frame_id", 0)))
    members: list[JsonObject] = []
    for scope in listed:
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
                raise InvalidParams.of_field("expand", f"there is no structured {prefix + part!r}")
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


async def evaluate(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Evaluate an expression in a frame of the debugged program."""
    session = bridge.session(call)
    frame = await session.frame(cast("int", call.args.get("frame_id", 0)))
    body = await session.ask(
        "evaluate",
        {
            "expression": call.args["expression"],
            "frameId": frame.get("id"),
            "context": call.args.get("context", "watch"),
        },
    )
    kind = body.get("type")
    return {
        "result": str(body.get("result", ""))[:VALUE_CHARS],
        "type": kind if isinstance(kind, str) else None,
    }


async def disassemble(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Show machine code."""
    session, args = bridge.session(call), call.args
    session.require("supportsDisassembleRequest", "disassembly")
    view = View(call, bridge, session)
    body = await session.ask(
        "disassemble",
        {
            "memoryReference": args["memory_reference"],
            "offset": args.get("offset", 0),
            "instructionOffset": args.get("instruction_offset", 0),
            "instructionCount": args.get("instruction_count", 32),
            "resolveSymbols": args.get("resolve_symbols") is not False,
        },
    )
    shown: list[JsonValue] = []
    for one in _list(body.get("instructions")):
        entry: JsonObject = {
            "address": str(one.get("address", "")),
            "instruction": str(one.get("instruction", "")),
        }
        if isinstance(one.get("symbol"), str):
            entry["symbol"] = one["symbol"]
        path = path_of({"source": one.get("location")})
        if path is not None:
            entry |= {"path": view.shown_path(path), "line": one.get("line")}
        shown.append(entry)
    return {"instructions": shown}


async def read_memory(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Read the program's memory."""
    session, args = bridge.session(call), call.args
    session.require("supportsReadMemoryRequest", "reading memory")
    body = await session.ask(
        "readMemory",
        {
            "memoryReference": args["memory_reference"],
            "offset": args.get("offset", 0),
            "count": args["count"],
        },
    )
    return {
        "address": str(body.get("address", "")),
        "data": str(body.get("data", "")),
        "unreadable_bytes": body.get("unreadableBytes", 0),
    }


async def write_memory(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Write the program's memory."""
    session, args = bridge.session(call), call.args
    session.require("supportsWriteMemoryRequest", "writing memory")
    data = cast("str", args["data"])
    body = await session.ask(
        "writeMemory",
        {
            "memoryReference": args["memory_reference"],
            "offset": args.get("offset", 0),
            "data": data,
            "allowPartial": args.get("allow_partial") is True,
        },
    )
    written = body.get("bytesWritten")
    size = len(base64.b64decode(data))
    return {
        "bytes_written": written if type(written) is int else size,
        "offset": body.get("offset", args.get("offset", 0)),
    }


async def modules(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """List the program's modules."""
    session, args = bridge.session(call), call.args
    session.require("supportsModulesRequest", "modules")
    asked: JsonObject = {"startModule": args.get("start_module", 0)}
    if "module_count" in args:
        asked["moduleCount"] = args["module_count"]
    body = await session.ask("modules", asked)
    view = View(call, bridge, session)
    shown: list[JsonValue] = []
    for one in _list(body.get("modules")):
        entry: JsonObject = {"id": one.get("id"), "name": str(one.get("name", ""))}
        if isinstance(one.get("path"), str):
            entry["path"] = view.shown_path(cast("str", one["path"]))
        if isinstance(one.get("version"), str):
            entry["version"] = one["version"]
        shown.append(entry)
    total = body.get("totalModules")
    return {"modules": shown, "total": total if type(total) is int else len(shown)}


async def loaded_sources(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """List the sources that the program has loaded."""
    session = bridge.session(call)
    session.require("supportsLoadedSourcesRequest", "loaded sources")
    view = View(call, bridge, session)
    shown: list[JsonValue] = []
    for one in _list((await session.ask("loadedSources")).get("sources")):
        path = path_of({"source": one})
        entry: JsonObject = {
            "name": str(one.get("name", "")),
            "path": None if path is None else view.shown_path(path),
        }
        if path is not None and view.project_path(path) is None:
            entry["outside_project"] = True
        shown.append(entry)
    return {"sources": shown, "count": len(shown)}


async def custom_request(bridge: DapBridge, call: ToolCall) -> JsonValue:
    """Send a request of the adapter's own."""
    session = bridge.session(call)
    command = cast("str", call.args["command"])
    arguments = call.args.get("arguments")
    body = await session.ask(command, arguments if isinstance(arguments, dict) else {})
    return {"command": command, "body": body}


def check_custom(args: JsonObject) -> None:
    """Refuse commands that are the bridge's own business."""
    if args.get("command") in _LIFECYCLE:
        raise InvalidParams.of_field("command", f"{args['command']} is the bridge's own business")


def check_data(args: JsonObject) -> None:
    """Refuse bytes that are not base64."""
    try:
        base64.b64decode(cast("str", args["data"]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidParams.of_field("data", "is not base64") from error


async def _scopes(session: DebugSession, position: int) -> list[JsonObject]:
    frame = await session.frame(position)
    return _list((await session.ask("scopes", {"frameId": frame.get("id")})).get("scopes"))


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
    return _list(body.get("variables"))


def _parts(path: str, members: list[JsonObject]) -> list[str]:
    """Split a dotted path; a name that itself holds dots counts whole."""
    if any(one.get("name") == path for one in members):
        return [path]
    parts = path.split(".")
    if len(parts) > MAX_DEPTH:
        raise InvalidParams.of_field("expand", f"goes deeper than {MAX_DEPTH} levels")
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
    return shown


def _expandable(one: JsonObject) -> bool:
    reference = one.get("variablesReference")
    return type(reference) is int and reference > 0


def _list(value: JsonValue) -> list[JsonObject]:
    found = value if isinstance(value, list) else []
    return [one for one in found if isinstance(one, dict)]


__all__ = [
    "check_custom",
    "check_data",
    "custom_request",
    "disassemble",
    "evaluate",
    "loaded_sources",
    "modules",
    "read_memory",
    "scopes",
    "stack_trace",
    "threads",
    "variables",
    "write_memory",
]
