"""What each kind of adapter is told to do: launch a program, or attach to one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath

from kaged.base import JsonObject
from kaged.toolbox.dap.adapters import AdapterPlan, Kind


def launch_arguments(
    plan: AdapterPlan,
    *,
    script: str,
    args: list[str],
    cwd: str,
    env: Mapping[str, str],
    stop_on_entry: bool,
    python: str,
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
            arguments |= {"python": [python], "justMyCode": False, "redirectOutput": True}
        case "go":
            arguments |= _go(script, plan.output)
        case "lldb-dap":
            arguments["env"] = [f"{name}={value}" for name, value in env.items()]
        case "pwa-node" if plan.kind is Kind.LISTENING:
            # In a terminal, that is by us: so its exit code and all that it prints are known.
            arguments |= {"console": "integratedTerminal", "runtimeExecutable": plan.program}
        case _:
            pass
    return arguments


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
        case "pwa-node" if plan.kind is Kind.LISTENING:
            arguments |= {"address": host, "port": port}
        case _:
            arguments |= {"host": host, "port": port}
    return arguments
