"""`shell.jobs`: look at, read and stop the commands that `shell.bash` started in the background."""

from __future__ import annotations

from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.requirements import CapabilityRequirement
from kaged.toolbox.shell.background import MAX_WAIT_S, BackgroundCommands
from kaged.tools import InvalidToolParams, Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import closed, integer, text

READ_BYTES: Final = 32 * 1024
LIST, READ, STOP = "list", "read", "stop"

DEFINITION: Final = ToolDefinition(
    name="shell.jobs",
    namespace="shell",
    description=(
        "Look at the commands of this session that run in the background (shell.bash with "
        "background true): `list` them, `read` what one has written since an offset, `stop` one. "
        "They go on between turns and end with the session, or when the daemon ends."
    ),
    parameters=closed(
        {
            "action": {
                "type": "string",
                "enum": [LIST, READ, STOP],
                "default": LIST,
                "description": "What to do.",
            },
            "handle": text("Which command, for read and stop.", maxLength=80),
            "offset": integer(
                "For read: where to go on, in bytes; `next_offset` of the last read.",
                minimum=0,
                default=0,
            ),
            "limit": integer(
                "For read: how many bytes at most.", minimum=1024, maximum=262_144,
                default=READ_BYTES,
            ),
            "wait": integer(
                "For read: milliseconds to wait for the command's end first.",
                minimum=0,
                maximum=int(MAX_WAIT_S * 1000),
                default=0,
            ),
        },
        [],
    ),
    returns={
        "type": "object",
        "properties": {
            "commands": {"type": "array", "items": {"type": "object"}},
            "handle": {"type": "string"},
            "running": {"type": "boolean"},
            "exit_code": {"type": "integer"},
            "output": {"type": "string"},
            "next_offset": {"type": "integer"},
        },
    },
    requires=(CapabilityRequirement("shell"),),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobsTool:
    """The tool on the commands of a daemon."""

    commands: BackgroundCommands

    def tool(self) -> Tool:
        """Return it as it is registered."""
        return Tool(DEFINITION, self._run, changes=_stops, check=_check)

    async def _run(self, call: ToolInvocation) -> JsonValue:
        args = call.args
        handle = cast("str", args.get("handle", ""))
        match args["action"]:
            case "read":
                offset, limit = cast("int", args["offset"]), cast("int", args["limit"])
                wait_s = cast("int", args["wait"]) / 1000
                return await self.commands.read(call, handle, offset, limit, wait_s)
            case "stop":
                done = await self.commands.stop(call, handle)
                call.emit("shell.stopped", handle=handle)
                return done
            case _:
                return {"commands": self.commands.list(call)}


def _stops(args: JsonObject) -> bool:
    return args.get("action") == STOP


def _check(args: JsonObject) -> None:
    if args["action"] != LIST and not args.get("handle"):
        raise InvalidToolParams.of_field("handle", "is needed to read and to stop")
