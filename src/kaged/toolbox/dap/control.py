"""Control of the program: launch, attach, steps, continue, pause, disconnect."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import Final, cast

from kaged.base import JsonObject, JsonValue
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.requirements import NetRequirement
from kaged.toolbox.dap.adapters import AdapterPlan, Kind, joining
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.interpreter import Interpreter
from kaged.toolbox.dap.state import State
from kaged.toolbox.dap.targets import require_modules, target_of
from kaged.toolbox.dap.view import View
from kaged.tools import InvalidToolParams, ToolCapabilityRefused, ToolInvocation
from kaged.workspace import ProjectPath
from kaged.workspace.errors import FileMissing

SAID_CHARS: Final = 4000
_COMMANDS: Final = {
    "step_into": "stepIn",
    "step_over": "next",
    "step_out": "stepOut",
    "continue": "continue",
}


async def launch(view: View) -> JsonValue:
    """Start a program under the debugger."""
    call, bridge, args = view.call, view.bridge, view.args
    build = cast("list[str]", args.get("build") or [])
    target = target_of(call)
    script, cwd = target.script, target.cwd
    if script is not None and not build:
        _require(script, directory=False)
    _require(cwd, directory=True)
    plan = bridge.plan(call, cast("str", args["runtime"]))
    require_modules(target, plan)
    policy = call.context.cage_policy
    stop_on_entry = args.get("stop_on_entry") is not False
    given = cast("dict[str, str]", args.get("env") or {})
    if build:
        await bridge.build(call, build, given, cwd.resolved)
        if script is not None:
            _require(script, directory=False)
    env = {**dict(policy.env if policy is not None else ()), **given}
    file = "" if script is None else script.resolved
    arguments = launch_arguments(
        plan,
        script=file,
        args=list(target.args),
        cwd=cwd.resolved,
        env=env,
        stop_on_entry=stop_on_entry,
    )
    python: Interpreter | None = None
    if plan.type == "debugpy":
        python = bridge.interpreter(
            call, cwd.resolved if script is None else str(Path(file).parent)
        )
        # The debugger's own part stays with the usual one.
        usual = bridge.python(caged=policy is not None)
        arguments |= {"python": [python.path], "debugLauncherPython": usual}
    if target.module is not None:
        arguments["module"] = target.module
        del arguments["program"]
    view.session = await bridge.start(
        call,
        plan,
        "launch",
        arguments,
        cwd=adapter_cwd(plan, file, cwd.resolved),
        script=target.shown,
    )
    begun = await _begun(view, wait=stop_on_entry)
    if python is not None:
        begun["python"] = python.shown
        if python.note:
            begun["note"] = python.note
        failed = begun["status"] == "exited" and begun.get("exit_code") != 0
        if target.module is not None and stop_on_entry and failed:
            await view.session.disconnect(terminate=True)
            raise _not_begun(target.module, begun)
    return begun


async def attach(view: View) -> JsonValue:
    """Debug a program that runs already and listens on a port."""
    call, bridge, args = view.call, view.bridge, view.args
    host, port = cast("str", args.get("host") or "localhost"), cast("int", args["port"])
    _require_reachable(call, host, port)
    plan = bridge.plan(call, cast("str", args["runtime"]))
    plan = joining(plan, host, port, caged=call.policy is not None)
    view.session = await bridge.start(
        call, plan, "attach", attach_arguments(plan, host, port), cwd=bridge.root, script=None
    )
    return await _begun(view, wait=False)


async def move(view: View) -> JsonValue:
    """Step or continue, and describe where the program stopped next, or how it ended."""
    session = view.session
    action = str(view.args["action"])
    if session.state is State.STOPPED:
        thread = await view.thread_id(view.args.get("thread_id"))
        await session.resume(_COMMANDS[action], thread, view.bridge.wait_s)
    elif session.state is State.RUNNING:
        # An earlier call gave up waiting; this one picks the state up again.
        if action != "continue":
            session.require_stopped()
        await session.settled(view.bridge.wait_s)
    return await view.state()


async def pause(view: View) -> JsonValue:
    """Interrupt the program."""
    session = view.session
    if session.state is State.RUNNING:
        thread = await view.thread_id(view.args.get("thread_id"))
        await session.ask("pause", {"threadId": thread})
        await session.settled(view.bridge.wait_s)
    return await view.state()


async def disconnect(view: View) -> JsonValue:
    """End the session."""
    session = view.session
    terminate = view.args.get("terminate_debuggee") is not False
    gone = session.state is State.EXITED
    terminated = await session.disconnect(terminate=terminate)
    result: JsonObject = {"disconnected": True, "debuggee_terminated": terminated or gone}
    output = session.output.take()
    if output:
        result["output"] = output
    return result


async def _begun(view: View, *, wait: bool) -> JsonObject:
    session = view.session
    if wait:
        await session.settled(view.bridge.wait_s)
    state = await view.state()
    result: JsonObject = {"debug_session_id": session.id, "status": state["status"]}
    for name in ("stopped_reason", "exit_code", "location", "output"):
        if name in state:
            result[name] = state[name]
    result["threads"] = await view.threads() if session.alive else []
    return result


def _require(path: ProjectPath, *, directory: bool) -> None:
    found = Path(path.resolved)
    if not found.exists():
        raise FileMissing(path.relative, requested=path.requested)
    if found.is_dir() is not directory:
        field, kind = ("cwd", "a directory") if directory else ("script", "a file")
        raise InvalidToolParams.of_field(field, f"must be {kind}")


def _require_reachable(call: ToolInvocation, host: str, port: int) -> None:
    """Refuse a caged caller an address that its cage does not allow."""
    policy = call.policy
    if policy is None:
        return
    try:
        target: NetTarget = parse_target(f"{host}:{port}")
    except NetTargetInvalid as error:
        raise InvalidToolParams.of_field("host", str(error)) from error
    refusal = policy.refuse_net(NetRequirement(target), ())
    if refusal is not None:
        raise ToolCapabilityRefused(
            f"your cage does not allow connections to {host}:{port}",
            fix=f"ask for {host}:{port} in the cage's net.allow",
            detail=f"net:{host}:{port}",
            decision=refusal,
        )


def launch_arguments(
    plan: AdapterPlan,
    *,
    script: str,
    args: list[str],
    cwd: str,
    env: Mapping[str, str],
    stop_on_entry: bool,
) -> JsonObject:
    """Write the launch request of an adapter's type."""
    arguments: JsonObject = {
        "type": plan.type,
        "request": "launch",
        "name": "kaged",
        "program": script,
        "args": [*args],
        "cwd": cwd,
        "env": dict(env),
        "stopOnEntry": stop_on_entry,
        "console": "internalConsole",
    }
    if plan.flags:
        arguments["runtimeArgs"] = [*plan.flags]
    match plan.type:
        case "debugpy":
            arguments |= {"justMyCode": False, "redirectOutput": True}
        case "go":
            arguments |= _go(script, plan.output)
        case "lldb-dap":
            arguments["env"] = [f"{name}={value}" for name, value in env.items()]
        case "gdb":
            arguments["stopAtBeginningOfMainSubprogram"] = stop_on_entry
            del arguments["stopOnEntry"]  # would stop at the loader's first instruction
        case "pwa-node" if plan.kind is Kind.LISTENING:
            # In a terminal, that is by us: so its exit code and all that it prints are known.
            arguments |= {"console": "integratedTerminal", "runtimeExecutable": plan.program}
        case _:
            pass
    return arguments


def _not_begun(module: str, begun: JsonObject) -> DapRequestFailed:
    """Return the error for a module that ended before its first line, with what was said."""
    said = str(begun.get("output", "")).strip()[-SAID_CHARS:]
    python, code = begun["python"], begun.get("exit_code")
    why = f"; {begun['note']}" if "note" in begun else ""
    absent = f"No module named {module}" in said
    install = f"install {module} for {python}: `{python} -m pip install …`"
    return DapRequestFailed(
        f"{module} ended with exit code {code} before it could stop; it ran in {python}{why}; "
        f"it printed: {said}",
        fix=install if absent else "mend what it says and launch again",
        detail={"exit_code": code, "output": said, "python": python},
    )


def _go(script: str, output: str | None) -> JsonObject:
    """Return what delve builds: the package of a source file; a built program runs as is."""
    path = PurePosixPath(script)
    if path.suffix != ".go":
        return {"mode": "exec"}
    mode = "test" if path.name.endswith("_test.go") else "debug"
    return {"mode": mode, "program": str(path.parent), "output": output}


def adapter_cwd(plan: AdapterPlan, script: str, cwd: str) -> str:
    """Return where an adapter is started: delve builds where it stands."""
    is_source = plan.type == "go" and script.endswith(".go")
    return str(PurePosixPath(script).parent) if is_source else cwd


def attach_arguments(plan: AdapterPlan, host: str, port: int) -> JsonObject:
    """Write the attach request of an adapter's type."""
    arguments: JsonObject = {"type": plan.type, "request": "attach", "name": "kaged"}
    match plan.type:
        case "debugpy":
            arguments |= {"connect": {"host": host, "port": port}, "justMyCode": False}
        case "lldb-dap":
            arguments |= {"gdb-remote-hostname": host, "gdb-remote-port": port}
        case "gdb":
            arguments["target"] = f"{host}:{port}"
        case "pwa-node" if plan.kind is Kind.LISTENING:
            arguments |= {"address": host, "port": port}
        case _:
            arguments |= {"host": host, "port": port}
    return arguments
