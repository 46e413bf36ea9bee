"""Which debugger a runtime has: built in, the operator's or the project's; and how to get it."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from kaged.base import JsonObject
from kaged.config.serverchoice import AdapterChoice
from kaged.toolbox.dap.errors import DapAdapterNotFound


class Kind(StrEnum):
    """How an adapter is spoken to."""

    DAP = "dap"  # a program that speaks DAP on its standard streams
    NODE = "node-inspector"  # node itself, whose inspector we translate
    BUN = "bun-inspector"  # bun itself, likewise


BUILTIN: Final[Mapping[str, AdapterChoice]] = MappingProxyType(
    {
        "python": AdapterChoice("debugpy", None, ("python3", "-m", "debugpy.adapter"), False),
        "node": AdapterChoice("pwa-node", ("node",), None, False),
        "bun": AdapterChoice("bun", ("bun",), None, False),
        "go": AdapterChoice("go", None, ("dlv", "dap"), True),
        "rust": AdapterChoice("lldb-dap", None, ("lldb-dap",), True),
        "cpp": AdapterChoice("lldb-dap", None, ("lldb-dap",), True),
        "c": AdapterChoice("lldb-dap", None, ("lldb-dap",), True),
    }
)

_INSTALL: Final[Mapping[str, str]] = MappingProxyType(
    {
        "debugpy": "pip install debugpy",
        "node": "install Node.js 20 or newer",
        "bun": "npm install -g bun",
        "dlv": "apt install delve",
        "lldb-dap": "apt install lldb-19",
    }
)


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter that is there and can be started: its argv, its place, what it needs.

    `mounts` are host directories that its cage must show, with where they appear inside;
    `env` are variables it needs; `flags` are a runtime's own options for the debugged program.
    """

    runtime: str
    type: str
    kind: Kind
    argv: tuple[str, ...]
    requires_ptrace: bool
    mounts: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    flags: tuple[str, ...] = ()


INSIDE_DEBUGPY: Final = "/run/kaged/debugpy"
INSIDE_RELAY: Final = "/run/kaged/inspector_relay.cjs"


def needs_ptrace(choice: AdapterChoice) -> bool:
    """Say whether a debugger needs ptrace; one that does not say counts as needing it."""
    return choice.requires_ptrace is not False


def require_known(runtime: str, choices: Mapping[str, AdapterChoice]) -> AdapterChoice:
    """Give a runtime's adapter. Raises DapAdapterNotFound."""
    choice = choices.get(runtime)
    if choice is None:
        raise DapAdapterNotFound(
            f"no debug adapter is configured for the runtime {runtime!r}",
            fix=f"known are {', '.join(sorted(choices))}; add [dap.adapters.{runtime}]",
            detail={"runtime": runtime, "command": None, "install": None},
        )
    return choice


def plan_adapter(
    runtime: str, choice: AdapterChoice, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    """Find an adapter's program, before anything is started.

    Raises:
        DapAdapterNotFound: it is not installed.
    """
    ptrace = needs_ptrace(choice)
    if choice.type == "debugpy" and (choice.adapter is None or "debugpy" in choice.adapter[-1]):
        return _debugpy(runtime, choice, environ, caged=caged)
    if choice.type in {"pwa-node", "bun"} and choice.adapter is None:
        kind = Kind.NODE if choice.type == "pwa-node" else Kind.BUN
        program, *flags = choice.command or (kind.value.partition("-")[0],)
        found = _found(runtime, (program,), environ)
        relay = str(Path(__file__).with_name("inspector_relay.cjs"))
        return AdapterPlan(
            runtime,
            choice.type,
            kind,
            (*found, INSIDE_RELAY if caged else relay),
            ptrace,
            mounts=((relay, INSIDE_RELAY),) if caged else (),
            flags=tuple(flags),
        )
    argv = _found(runtime, choice.adapter or choice.command or (), environ)
    return AdapterPlan(runtime, choice.type, Kind.DAP, argv, ptrace)


def _debugpy(
    runtime: str, choice: AdapterChoice, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    """Plan debugpy: the daemon's own copy serves every Python, which need not have it."""
    own = importlib.util.find_spec("debugpy")
    argv = choice.adapter or ("python3", "-m", "debugpy.adapter")
    if own is None or own.origin is None:
        return AdapterPlan(
            runtime, choice.type, Kind.DAP, _found(runtime, argv, environ, "debugpy"), False
        )
    package = str(Path(own.origin).parent)
    if caged:
        mounts = ((package, f"{INSIDE_DEBUGPY}/debugpy"),)
        env = (("PYTHONPATH", INSIDE_DEBUGPY),)
        return AdapterPlan(runtime, choice.type, Kind.DAP, argv, False, mounts, env)
    return AdapterPlan(
        runtime, choice.type, Kind.DAP, (sys.executable, "-m", "debugpy.adapter"), False
    )


def _found(
    runtime: str, argv: tuple[str, ...], environ: Mapping[str, str], name: str = ""
) -> tuple[str, ...]:
    program = argv[0] if argv else ""
    found = shutil.which(program, path=environ.get("PATH", os.defpath)) if program else None
    if found is None:
        known = name or PurePosixPath(program).name
        hint = _INSTALL.get(known, f"install {known} and put it on the daemon's PATH")
        raise DapAdapterNotFound(
            f"the debug adapter for {runtime} is not installed: {program or 'no command'}",
            fix=hint,
            detail={"runtime": runtime, "command": list(argv), "install": hint},
        )
    return (found, *argv[1:])


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
    if plan.type == "debugpy":
        arguments |= {"python": [python], "justMyCode": False, "redirectOutput": True}
    if plan.flags:
        arguments["runtimeArgs"] = [*plan.flags]
    if plan.type == "go":
        arguments["mode"] = "debug"
    return arguments


def attach_arguments(plan: AdapterPlan, host: str, port: int) -> JsonObject:
    """Write the attach request of an adapter's type."""
    arguments: JsonObject = {
        "type": plan.type,
        "request": "attach",
        "name": "kaged",
        "host": host,
        "port": port,
    }
    if plan.type == "debugpy":
        arguments |= {"connect": {"host": host, "port": port}, "justMyCode": False}
        del arguments["host"], arguments["port"]
    return arguments


__all__ = [
    "BUILTIN",
    "AdapterPlan",
    "Kind",
    "attach_arguments",
    "launch_arguments",
    "needs_ptrace",
    "plan_adapter",
    "require_known",
]
