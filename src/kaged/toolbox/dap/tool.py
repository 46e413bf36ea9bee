"""`debug`: one tool, twenty-seven actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final

from kaged.base import JsonObject, JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.kernel.policy import FsMode
from kaged.kernel.requirements import CapabilityRequirement, FsRequirement
from kaged.toolbox.dap import control, looking, memory, stopping
from kaged.toolbox.dap.bridge import DapBridge
from kaged.toolbox.dap.session import ended
from kaged.toolbox.dap.targets import check_target, target_paths
from kaged.toolbox.dap.view import View
from kaged.tools import InvalidToolParams, PathParam, Tool, ToolDefinition, ToolInvocation
from kaged.tools.fields import array, closed, flag, text


@dataclass(frozen=True, slots=True)
class Action:
    """What an action runs, which parameters it must have, and what else is checked.

    `offered` is the capability that the adapter must have, and its name for people. All but those
    that `open` a session work on the one that the caller has.
    """

    run: Callable[[View], Awaitable[JsonValue]]
    needs: tuple[str, ...] = ()
    check: Callable[[JsonObject], None] | None = None
    offered: tuple[str, str] | None = None
    opens: bool = False


def _special(
    what: str, capability: str, run: Callable[[View], Awaitable[JsonValue]], *needs: str
) -> Action:
    return Action(run, needs, offered=(f"supports{capability}", what))


_INSTRUCTION: Final = ("instruction breakpoints", "InstructionBreakpoints")
_DATA: Final = ("data breakpoints", "DataBreakpoints")

ACTIONS: Final[Mapping[str, Action]] = {
    "launch": Action(control.launch, ("runtime",), check_target, opens=True),
    "attach": Action(control.attach, ("runtime", "port"), opens=True),
    "set_breakpoint": Action(stopping.set_breakpoint, ("path", "line")),
    "remove_breakpoint": Action(stopping.remove_breakpoint, ("path", "line")),
    "list_breakpoints": Action(stopping.list_breakpoints),
    "set_instruction_breakpoint": _special(
        *_INSTRUCTION, stopping.set_instruction_breakpoint, "instruction_reference"
    ),
    "remove_instruction_breakpoint": _special(
        *_INSTRUCTION, stopping.remove_instruction_breakpoint, "instruction_reference"
    ),
    "data_breakpoint_info": _special(*_DATA, stopping.data_breakpoint_info, "name"),
    "set_data_breakpoint": _special(*_DATA, stopping.set_data_breakpoint, "data_id"),
    "remove_data_breakpoint": _special(*_DATA, stopping.remove_data_breakpoint, "data_id"),
    "step_into": Action(control.move),
    "step_over": Action(control.move),
    "step_out": Action(control.move),
    "continue": Action(control.move),
    "pause": Action(control.pause),
    "stack_trace": Action(looking.stack_trace),
    "threads": Action(looking.threads),
    "scopes": Action(looking.scopes),
    "variables": Action(looking.variables),
    "evaluate": Action(looking.evaluate, ("expression",)),
    "disassemble": _special(
        "disassembly", "DisassembleRequest", memory.disassemble, "memory_reference"
    ),
    "read_memory": _special(
        "reading memory", "ReadMemoryRequest", memory.read_memory, "memory_reference", "count"
    ),
    "write_memory": Action(
        memory.write_memory,
        ("memory_reference", "data"),
        memory.check_data,
        ("supportsWriteMemoryRequest", "writing memory"),
    ),
    "modules": _special("modules", "ModulesRequest", memory.modules),
    "loaded_sources": _special("loaded sources", "LoadedSourcesRequest", memory.loaded_sources),
    "custom_request": Action(memory.custom_request, ("command",), memory.check_custom),
    "disconnect": Action(control.disconnect),
}


def _text(description: str, **more: JsonValue) -> JsonObject:
    return {"type": "string", "minLength": 1, "description": description, **more}


def _number(description: str, **more: JsonValue) -> JsonObject:
    return {"type": "integer", "description": description, **more}


PARAMETERS: Final[JsonObject] = closed(
    {
        "action": text("What to do.", enum=list(ACTIONS)),
        "runtime": _text(
            "launch, attach: python, node, bun, go, rust, cpp, c or a configured one."
        ),
        "script": _text(
            "launch: the program to debug; for python also a test, tests/test_x.py::test_name."
        ),
        "module": _text("launch: a Python module instead, as pytest.", maxLength=200),
        "args": array({"type": "string"}, "launch: its arguments.", maxItems=1000),
        "build": array(
            {"type": "string", "minLength": 1, "maxLength": 4096},
            "launch: a command that builds the program first, as a list without a shell.",
            minItems=1,
            maxItems=200,
        ),
        "env": {
            "type": "object",
            "additionalProperties": {"type": "string"},
            "maxProperties": 64,
            "description": "launch: variables on top of those that are set anyway.",
        },
        "stop_on_entry": flag("launch: stop on the first line (default true)."),
        "cwd": _text("launch: where it runs; the project root when left out."),
        "port": _number("attach: the port it listens on.", minimum=1, maximum=65_535),
        "host": _text("attach: the host, localhost when left out."),
        "path": _text("set_breakpoint, remove_breakpoint: the source file."),
        "line": _number("Its line, counted from 1.", minimum=1),
        "condition": _text("Stop only when this expression is true."),
        "hit_count": _number("Stop at the N-th hit.", minimum=1),
        "log_message": _text("Log this ({expressions} filled in) instead of stopping."),
        "instruction_reference": _text("Where in the code."),
        "offset": _number("Bytes from the reference."),
        "name": _text("data_breakpoint_info: the variable."),
        "variables_reference": _number("data_breakpoint_info: whose member it is.", minimum=0),
        "data_id": _text("From data_breakpoint_info."),
        "access_type": text(
            "set_data_breakpoint: which accesses (default write).",
            enum=["read", "write", "readWrite"],
        ),
        "thread_id": _number("Which thread; the stopped one when left out."),
        "levels": _number("stack_trace: how many frames (default 20).", minimum=1, maximum=1000),
        "frame_id": _number("Which frame, 0 being the top.", minimum=0, maximum=9_999),
        "scope": text(
            "variables: of which scope (default local).", enum=["local", "closure", "global"]
        ),
        "filter": text("variables: only names that contain this."),
        "expand": _text("variables: show the members of this one, e.g. user or user.address."),
        "expression": _text("evaluate: what."),
        "context": text(
            "evaluate: watch (default) reads; repl may run any code.", enum=["watch", "repl"]
        ),
        "memory_reference": _text("Where in memory."),
        "instruction_offset": _number("disassemble: instructions from there."),
        "instruction_count": _number("disassemble: how many.", minimum=1, maximum=1000),
        "resolve_symbols": flag("disassemble: name symbols."),
        "count": _number("read_memory: how many bytes.", minimum=1, maximum=65_536),
        "data": text("write_memory: base64.", maxLength=1_000_000),
        "allow_partial": flag("write_memory: less is fine too."),
        "start_module": _number("modules: the first.", minimum=0),
        "module_count": _number("modules: how many.", minimum=0),
        "command": _text("custom_request: the adapter's command."),
        "arguments": {"type": "object", "description": "custom_request: its arguments."},
        "terminate_debuggee": flag("disconnect: end the program too (default true)."),
    },
    ["action"],
)

DEFINITION: Final = ToolDefinition(
    name="debug",
    namespace="debug",
    description=(
        "Run a program under a debugger and look inside. launch (or attach), set_breakpoint "
        "(with condition, hit_count or log_message), continue, step_over, step_into, step_out, "
        "pause; while stopped: stack_trace, scopes, variables (expand for members), evaluate; "
        "disconnect at the end. One session per agent. Prefer evaluate with context=watch: repl "
        "can run arbitrary code in the debugged process. log_message breakpoints observe without "
        "stopping. Also: threads, modules, loaded_sources, disassemble, read_memory, "
        "write_memory, instruction and data breakpoints, custom_request, where the debugger "
        "supports them."
    ),
    parameters=PARAMETERS,
    returns={"type": "object"},
    requires=(FsRequirement(FsMode.RO), CapabilityRequirement("exec")),
)


def dap_tools(bridge_for: Callable[[ToolInvocation], DapBridge | None]) -> tuple[Tool, ...]:
    """Return `debug`; `bridge_for` finds the bridge of a call's project."""

    async def handle(call: ToolInvocation) -> JsonValue:
        bridge = bridge_for(call)
        if bridge is None:
            raise ended()
        action = ACTIONS[str(call.args["action"])]
        view = View(call, bridge)
        if not action.opens:
            view.session = bridge.session(call)
        if action.offered is not None:
            view.session.require(*action.offered)
        return await action.run(view)

    return (Tool(DEFINITION, handle, paths=_paths, changes=_changes, check=_check),)


def _paths(args: JsonObject) -> tuple[PathParam, ...]:
    if args["action"] == "launch":
        return target_paths(args)
    path = args.get("path")
    if isinstance(path, str):
        return (PathParam("path", path),)
    # Any readable mount will do (AT-DAP-15): something below the root can be read.
    return (PathParam("cwd", "./", search=True),)


def _changes(args: JsonObject) -> bool:
    return args["action"] in {"launch", "attach", "evaluate", "write_memory", "custom_request"}


def _check(args: JsonObject) -> None:
    action = ACTIONS[str(args["action"])]
    missing = [name for name in action.needs if name not in args]
    if missing:
        raise InvalidToolParams.of_fields(
            (name, f"is required for {args['action']}") for name in missing
        )
    if action.check is not None:
        action.check(args)
