"""What the program has loaded and holds in memory, and requests of the adapter's own."""

from __future__ import annotations

import base64
import binascii
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.view import View, objects_in, path_of
from kaged.tools import InvalidToolParams

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


async def disassemble(view: View) -> JsonValue:
    """Show machine code."""
    session, args = view.session, view.args
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
    for one in objects_in(body.get("instructions")):
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


async def read_memory(view: View) -> JsonValue:
    """Read the program's memory."""
    session, args = view.session, view.args
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


async def write_memory(view: View) -> JsonValue:
    """Write the program's memory."""
    session, args = view.session, view.args
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


def check_data(args: JsonObject) -> None:
    """Refuse bytes that are not base64."""
    try:
        base64.b64decode(cast("str", args["data"]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidToolParams.of_field("data", "is not base64") from error


async def modules(view: View) -> JsonValue:
    """List the program's modules."""
    session, args = view.session, view.args
    asked: JsonObject = {"startModule": args.get("start_module", 0)}
    if "module_count" in args:
        asked["moduleCount"] = args["module_count"]
    body = await session.ask("modules", asked)
    shown: list[JsonValue] = []
    for one in objects_in(body.get("modules")):
        entry: JsonObject = {"id": one.get("id"), "name": str(one.get("name", ""))}
        if isinstance(one.get("path"), str):
            entry["path"] = view.shown_path(cast("str", one["path"]))
        if isinstance(one.get("version"), str):
            entry["version"] = one["version"]
        shown.append(entry)
    total = body.get("totalModules")
    return {"modules": shown, "total": total if type(total) is int else len(shown)}


async def loaded_sources(view: View) -> JsonValue:
    """List the sources that the program has loaded."""
    session = view.session
    shown: list[JsonValue] = []
    for one in objects_in((await session.ask("loadedSources")).get("sources")):
        path = path_of({"source": one})
        entry: JsonObject = {
            "name": str(one.get("name", "")),
            "path": None if path is None else view.shown_path(path),
        }
        if path is not None and view.project_path(path) is None:
            entry["outside_project"] = True
        shown.append(entry)
    return {"sources": shown, "count": len(shown)}


async def custom_request(view: View) -> JsonValue:
    """Send a request of the adapter's own."""
    args = view.args
    command = cast("str", args["command"])
    arguments = args.get("arguments")
    body = await view.session.ask(command, arguments if isinstance(arguments, dict) else {})
    return {"command": command, "body": body}


def check_custom(args: JsonObject) -> None:
    """Refuse commands that are the bridge's own business."""
    if args.get("command") in _LIFECYCLE:
        raise InvalidToolParams.of_field("command", f"{args['command']} is reserved for the daemon")
