"""Where to stop: breakpoints on lines, instructions and data."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.breakpoints import MAX_BREAKPOINTS, OtherBreakpoint, SourceBreakpoint
from kaged.tools.errors import InvalidToolParams

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.toolbox.dap.session import DebugSession
    from kaged.tools.call import ToolInvocation


async def set_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop at a line; the same line again changes its breakpoint and keeps its number."""
    session = bridge.session(call)
    args, path = call.args, call.paths[0]
    line = cast("int", args["line"])
    for field, capability in (
        ("condition", "supportsConditionalBreakpoints"),
        ("hit_count", "supportsHitConditionalBreakpoints"),
        ("log_message", "supportsLogPoints"),
    ):
        if field in args:
            session.require(capability, field)
    lines = session.breakpoints.sources.setdefault(path.resolved, {})
    if line not in lines:
        _require_space(session)
        number = session.breakpoints.next_id()
        lines[line] = SourceBreakpoint(number, path.resolved, path.relative, line)
    one = lines[line]
    one.condition = cast("str | None", args.get("condition"))
    one.hit_count = cast("int | None", args.get("hit_count"))
    one.log_message = cast("str | None", args.get("log_message"))
    await session.send_breakpoints(path.resolved)
    return {
        "breakpoint_id": one.id,
        "verified": one.verified,
        "actual_line": one.actual_line or one.line,
        "path": one.shown,
    }


async def remove_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop no longer at a line."""
    session = bridge.session(call)
    path, line = call.paths[0], cast("int", call.args["line"])
    lines = session.breakpoints.sources.get(path.resolved, {})
    removed = lines.pop(line, None) is not None
    if removed:
        await session.send_breakpoints(path.resolved)
    return {"removed": removed, "path": path.relative, "line": line}


async def list_breakpoints(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """List the breakpoints on lines."""
    session = bridge.session(call)
    return {"breakpoints": [one.as_json() for one in session.breakpoints.all_sources()]}


async def set_instruction_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop at a machine instruction."""
    session = bridge.session(call)
    session.require("supportsInstructionBreakpoints", "instruction breakpoints")
    reference, offset = _instruction(call)
    wanted: JsonObject = {"instructionReference": reference, "offset": offset}
    one = _put(session, session.breakpoints.instructions, (reference, offset), wanted, call)
    await session.send_others("setInstructionBreakpoints", session.breakpoints.instructions)
    return {
        "breakpoint_id": one.id,
        "verified": one.verified,
        "instruction_reference": reference,
        "offset": offset,
    }


async def remove_instruction_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop no longer at a machine instruction."""
    session = bridge.session(call)
    session.require("supportsInstructionBreakpoints", "instruction breakpoints")
    removed = session.breakpoints.instructions.pop(_instruction(call), None) is not None
    if removed:
        await session.send_others("setInstructionBreakpoints", session.breakpoints.instructions)
    return {"removed": removed}


async def data_breakpoint_info(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Ask whether changes of a variable can be stopped at."""
    session = bridge.session(call)
    session.require("supportsDataBreakpoints", "data breakpoints")
    asked: JsonObject = {"name": call.args["name"]}
    if "variables_reference" in call.args:
        asked["variablesReference"] = call.args["variables_reference"]
    elif "frame_id" in call.args:
        frame = await session.frame(cast("int", call.args["frame_id"]))
        asked["frameId"] = frame.get("id")
    body = await session.ask("dataBreakpointInfo", asked)
    access = body.get("accessTypes")
    return {
        "data_id": body.get("dataId"),
        "description": str(body.get("description", "")),
        "access_types": access if isinstance(access, list) else [],
        "can_persist": body.get("canPersist") is True,
    }


async def set_data_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop when a variable is read or written."""
    session = bridge.session(call)
    session.require("supportsDataBreakpoints", "data breakpoints")
    data_id = cast("str", call.args["data_id"])
    wanted: JsonObject = {"dataId": data_id, "accessType": call.args.get("access_type", "write")}
    one = _put(session, session.breakpoints.data, data_id, wanted, call)
    await session.send_others("setDataBreakpoints", session.breakpoints.data)
    return {"breakpoint_id": one.id, "verified": one.verified, "data_id": data_id}


async def remove_data_breakpoint(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Stop no longer at a variable."""
    session = bridge.session(call)
    session.require("supportsDataBreakpoints", "data breakpoints")
    removed = session.breakpoints.data.pop(cast("str", call.args["data_id"]), None) is not None
    if removed:
        await session.send_others("setDataBreakpoints", session.breakpoints.data)
    return {"removed": removed}


def _put(
    session: DebugSession,
    known: dict[object, OtherBreakpoint]
    | dict[str, OtherBreakpoint]
    | dict[tuple[str, int], OtherBreakpoint],
    key: object,
    wanted: JsonObject,
    call: ToolInvocation,
) -> OtherBreakpoint:
    if "condition" in call.args:
        wanted["condition"] = call.args["condition"]
    if "hit_count" in call.args:
        wanted["hitCondition"] = str(call.args["hit_count"])
    table = cast("dict[object, OtherBreakpoint]", known)
    if key not in table:
        _require_space(session)
        table[key] = OtherBreakpoint(session.breakpoints.next_id(), wanted)
    table[key].wanted = wanted
    return table[key]


def _instruction(call: ToolInvocation) -> tuple[str, int]:
    offset = call.args.get("offset", 0)
    return cast("str", call.args["instruction_reference"]), cast("int", offset)


def _require_space(session: DebugSession) -> None:
    if len(session.breakpoints) >= MAX_BREAKPOINTS:
        raise InvalidToolParams.of_field(
            "action", f"there are {MAX_BREAKPOINTS} breakpoints already"
        )
