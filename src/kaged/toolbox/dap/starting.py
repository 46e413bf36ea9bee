"""Beginning and ending: launch, attach, disconnect."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, cast

from kaged.base import JsonObject, JsonValue
from kaged.kernel.hosts import NetTargetInvalid
from kaged.kernel.net import NetTarget, parse_target
from kaged.kernel.requirements import NetRequirement
from kaged.toolbox.dap.launching import adapter_cwd, attach_arguments, launch_arguments
from kaged.toolbox.dap.state import State
from kaged.toolbox.dap.view import View
from kaged.tools.errors import InvalidToolParams, ToolCapabilityRefused
from kaged.workspace.errors import FileMissing

if TYPE_CHECKING:
    from kaged.toolbox.dap.bridge import DapBridge
    from kaged.toolbox.dap.session import DebugSession
    from kaged.tools.call import ToolInvocation
    from kaged.workspace import ProjectPath


async def launch(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Start a program under the debugger."""
    args = call.args
    script, cwd = call.paths[0], call.paths[1]
    _require(script, directory=False)
    _require(cwd, directory=True)
    plan = bridge.plan(call, cast("str", args["runtime"]))
    policy = call.context.cage_policy
    stop_on_entry = args.get("stop_on_entry") is not False
    env = dict(policy.env) if policy is not None else {}
    env |= cast("dict[str, str]", args.get("env") or {})
    arguments = launch_arguments(
        plan,
        script=script.resolved,
        args=cast("list[str]", args.get("args") or []),
        cwd=cwd.resolved,
        env=env,
        stop_on_entry=stop_on_entry,
        python=bridge.python(caged=policy is not None),
    )
    session = await bridge.start(
        call,
        plan,
        "launch",
        arguments,
        cwd=adapter_cwd(plan, script.resolved, cwd.resolved),
        script=script.relative,
    )
    return await _begun(bridge, call, session, wait=stop_on_entry)


async def attach(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """Debug a program that runs already and listens on a port."""
    args = call.args
    host, port = cast("str", args.get("host") or "localhost"), cast("int", args["port"])
    _require_reachable(call, host, port)
    plan = bridge.plan(call, cast("str", args["runtime"]))
    session = await bridge.start(
        call, plan, "attach", attach_arguments(plan, host, port), cwd=bridge.root, script=None
    )
    return await _begun(bridge, call, session, wait=False)


async def disconnect(bridge: DapBridge, call: ToolInvocation) -> JsonValue:
    """End the session."""
    session = bridge.session(call)
    terminate = call.args.get("terminate_debuggee") is not False
    gone = session.state is State.EXITED
    terminated = await session.disconnect(terminate=terminate)
    result: JsonObject = {"disconnected": True, "debuggee_terminated": terminated or gone}
    output = session.take_output()
    if output:
        result["output"] = output
    return result


async def _begun(
    bridge: DapBridge, call: ToolInvocation, session: DebugSession, *, wait: bool
) -> JsonObject:
    if wait:
        await session.settled(bridge.wait_s)
    view = View(call, bridge, session)
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
        raise FileMissing(path.relative)
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
