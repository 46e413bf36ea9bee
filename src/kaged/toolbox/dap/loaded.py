"""What the program has loaded, and requests of the adapter's own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.toolbox.dap.view import View, objects_in, path_of
from kaged.tools.errors import InvalidToolParams

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.tools.call import ToolInvocation

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


async def modules(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """List the program's modules."""
    session, args = bridge.session(call), call.args
    session.require("supportsModulesRequest", "modules")
    asked: JsonObject = {"startModule": args.get("start_module", 0)}
    if "module_count" in args:
        asked["moduleCount"] = args["module_count"]
    body = await session.ask("modules", asked)
    view = View(call, bridge, session)
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


async def loaded_sources(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """List the sources that the program has loaded."""
    session = bridge.session(call)
    session.require("supportsLoadedSourcesRequest", "loaded sources")
    view = View(call, bridge, session)
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


async def custom_request(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Send a request of the adapter's own."""
    session = bridge.session(call)
    command = cast("str", call.args["command"])
    arguments = call.args.get("arguments")
    body = await session.ask(command, arguments if isinstance(arguments, dict) else {})
    return {"command": command, "body": body}


def check_custom(args: JsonObject) -> None:
    """Refuse commands that are the bridge's own business."""
    if args.get("command") in _LIFECYCLE:
        raise InvalidToolParams.of_field("command", f"{args['command']} is reserved for the daemon")
