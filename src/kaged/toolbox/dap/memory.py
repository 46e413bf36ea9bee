"""The program's memory: disassembled, read, written."""

from __future__ import annotations

import base64
import binascii
from typing import TYPE_CHECKING, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.view import View, objects_in, path_of
from kaged.tools.errors import InvalidToolParams

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.tools.call import ToolInvocation


async def disassemble(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
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


async def read_memory(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
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


async def write_memory(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
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


def check_data(args: JsonObject) -> None:
    """Refuse bytes that are not base64."""
    try:
        base64.b64decode(cast("str", args["data"]), validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidToolParams.of_field("data", "is not base64") from error
