"""Where to stop: breakpoints on lines, instructions and data."""

from __future__ import annotations

from typing import Any, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.breakpoints import MAX_BREAKPOINTS, OtherBreakpoint, SourceBreakpoint
from kaged.toolbox.dap.session import DebugSession
from kaged.toolbox.dap.view import View
from kaged.tools import InvalidToolParams


async def set_breakpoint(view: View) -> JsonValue:
    """Stop at a line; the same line again changes its breakpoint and keeps its number."""
    session, args, path = view.session, view.args, view.call.paths[0]
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


async def remove_breakpoint(view: View) -> JsonValue:
    """Stop no longer at a line."""
    session, path, line = view.session, view.call.paths[0], cast("int", view.args["line"])
    lines = session.breakpoints.sources.get(path.resolved, {})
    removed = lines.pop(line, None) is not None
    if removed:
        await session.send_breakpoints(path.resolved)
    return {"removed": removed, "path": path.relative, "line": line}


async def list_breakpoints(view: View) -> JsonValue:
    """List the breakpoints on lines."""
    return {"breakpoints": [one.as_json() for one in view.session.breakpoints.all_sources()]}


async def set_instruction_breakpoint(view: View) -> JsonValue:
    """Stop at a machine instruction."""
    session, args = view.session, view.args
    reference, offset = _instruction(args)
    wanted: JsonObject = {"instructionReference": reference, "offset": offset}
    one = _put(session, session.breakpoints.instructions, (reference, offset), wanted, args)
    await session.send_others("setInstructionBreakpoints", session.breakpoints.instructions)
    return {
        "breakpoint_id": one.id,
        "verified": one.verified,
        "instruction_reference": reference,
        "offset": offset,
    }


async def remove_instruction_breakpoint(view: View) -> JsonValue:
    """Stop no longer at a machine instruction."""
    session, args = view.session, view.args
    table = session.breakpoints.instructions
    return await _remove(session, "setInstructionBreakpoints", table, _instruction(args))


async def data_breakpoint_info(view: View) -> JsonValue:
    """Ask whether changes of a variable can be stopped at."""
    session, args = view.session, view.args
    asked: JsonObject = {"name": args["name"]}
    if "variables_reference" in args:
        asked["variablesReference"] = args["variables_reference"]
    elif "frame_id" in args:
        frame = await session.frame(cast("int", args["frame_id"]))
        asked["frameId"] = frame.get("id")
    body = await session.ask("dataBreakpointInfo", asked)
    access = body.get("accessTypes")
    return {
        "data_id": body.get("dataId"),
        "description": str(body.get("description", "")),
        "access_types": access if isinstance(access, list) else [],
        "can_persist": body.get("canPersist") is True,
    }


async def set_data_breakpoint(view: View) -> JsonValue:
    """Stop when a variable is read or written."""
    session, args = view.session, view.args
    data_id = cast("str", args["data_id"])
    wanted: JsonObject = {"dataId": data_id, "accessType": args.get("access_type", "write")}
    one = _put(session, session.breakpoints.data, data_id, wanted, args)
    await session.send_others("setDataBreakpoints", session.breakpoints.data)
    return {"breakpoint_id": one.id, "verified": one.verified, "data_id": data_id}


async def remove_data_breakpoint(view: View) -> JsonValue:
    """Stop no longer at a variable."""
    session, args = view.session, view.args
    table = session.breakpoints.data
    return await _remove(session, "setDataBreakpoints", table, args["data_id"])


def _put(
    session: DebugSession,
    table: dict[Any, OtherBreakpoint],
    key: object,
    wanted: JsonObject,
    args: JsonObject,
) -> OtherBreakpoint:
    if "condition" in args:
        wanted["condition"] = args["condition"]
    if "hit_count" in args:
        wanted["hitCondition"] = str(args["hit_count"])
    if key not in table:
        _require_space(session)
        table[key] = OtherBreakpoint(session.breakpoints.next_id(), wanted)
    table[key].wanted = wanted
    return table[key]


async def _remove(
    session: DebugSession, command: str, table: dict[Any, OtherBreakpoint], key: object
) -> JsonValue:
    removed = table.pop(key, None) is not None
    if removed:
        await session.send_others(command, table)
    return {"removed": removed}


def _instruction(args: JsonObject) -> tuple[str, int]:
    offset = args.get("offset", 0)
    return cast("str", args["instruction_reference"]), cast("int", offset)


def _require_space(session: DebugSession) -> None:
    if len(session.breakpoints) >= MAX_BREAKPOINTS:
        raise InvalidToolParams.of_field(
            "action", f"there are {MAX_BREAKPOINTS} breakpoints already"
        )
