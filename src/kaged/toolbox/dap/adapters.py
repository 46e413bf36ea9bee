"""Which debugger a runtime has: built in, the operator's or the project's; and how to get it."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path, PurePosixPath
from typing import Final

from kaged.base.lazy_dataclass import dataclass
from kaged.config.serverchoice import AdapterChoice
from kaged.tools.errors import ToolError


class Kind(StrEnum):
    """How an adapter is spoken to."""

    DAP = "dap"  # a program that speaks DAP on its standard streams
    LISTENING = "dap-listening"  # one that is joined through a relay beside it
    NODE = "node-inspector"  # node itself, whose inspector we translate
    BUN = "bun-inspector"  # bun itself, likewise


JS_DEBUG: Final = "js-debug-adapter"
LLDB_DAP: Final = "lldb-dap"
_LLDB_NEWEST, _LLDB_OLDEST = 40, 18
GDB: Final = "gdb"
_GDB_ADAPTER: Final = (GDB, "--interpreter=dap")
NO_DAP: Final = "Interpreter `dap' unrecognized"
"""What a gdb says that is older than 14, or was built without Python."""
PLACES: Final = ("${client}", "${port}", "${socket}")
"""Words that say where a listening adapter and its relay meet; see `adapter_relay`."""
BUILD_S: Final = 120.0
START_S: Final = 30.0

BUILTIN: Final[Mapping[str, AdapterChoice]] = {
    "python": AdapterChoice("debugpy", None, ("python3", "-m", "debugpy.adapter"), False),
    # Where js-debug is not installed Node's own inspector serves; see `_node`.
    "node": AdapterChoice("pwa-node", ("node",), (JS_DEBUG, "${socket}"), False),
    "bun": AdapterChoice("bun", ("bun",), None, False),
    "go": AdapterChoice("go", None, ("dlv", "dap", "--client-addr=${client}"), True),
    "rust": AdapterChoice("lldb-dap", None, (LLDB_DAP,), True),
    "cpp": AdapterChoice("lldb-dap", None, (LLDB_DAP,), True),
    "c": AdapterChoice("lldb-dap", None, (LLDB_DAP,), True),
}

_INSTALL: Final[Mapping[str, str]] = {
    "debugpy": "pip install debugpy",
    "node": "install Node.js 20 or newer",
    "bun": "npm install -g bun",
    "dlv": "apt install delve",
    "lldb-dap": "apt install lldb-19",
}


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """An adapter that is there and can be started: its argv, its place, what it needs.

    `mounts` are host directories that its cage must show, with where they appear inside;
    `env` are variables it needs; `program` is the runtime and `flags` are its own options for the
    debugged program. `output` is where a debugger that builds puts the program, and `start_s` how
    long its start may take.
    """

    runtime: str
    type: str
    kind: Kind
    argv: tuple[str, ...]
    requires_ptrace: bool
    mounts: tuple[tuple[str, str], ...] = ()
    env: tuple[tuple[str, str], ...] = ()
    program: str = ""
    flags: tuple[str, ...] = ()
    output: str | None = None
    start_s: float = START_S


_DEBUGPY_MODULE: Final = ("-m", "debugpy.adapter")
INSIDE_DEBUGPY: Final = "/run/kaged/debugpy"
INSIDE_PROMPT: Final = "/run/kaged/debugpy_adapter.py"
INSIDE_RELAY: Final = "/run/kaged/inspector_relay.cjs"
INSIDE_ADAPTER_RELAY: Final = "/run/kaged/adapter_relay.py"
INSIDE_PORT_PIPE: Final = "/run/kaged/port_pipe.py"


def needs_ptrace(choice: AdapterChoice) -> bool:
    """Return whether a debugger needs ptrace; one that does not say counts as needing it."""
    return choice.requires_ptrace is not False


def require_known(runtime: str, choices: Mapping[str, AdapterChoice]) -> AdapterChoice:
    """Return a runtime's adapter. Raises `dap_adapter_not_found`."""
    choice = choices.get(runtime)
    if choice is None:
        raise ToolError(
            f"no debug adapter is configured for the runtime {runtime!r}",
            code="dap_adapter_not_found",
            fix=f"known are {', '.join(sorted(choices))}; add [dap.adapters.{runtime}]",
            detail={"runtime": runtime, "command": None, "install": None},
        )
    return choice


def plan_adapter(
    runtime: str, choice: AdapterChoice, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    """Find an adapter's program, before anything is started. Raises `dap_adapter_not_found`."""
    ptrace = needs_ptrace(choice)
    if choice.type == "debugpy" and (choice.adapter is None or "debugpy" in choice.adapter[-1]):
        return _debugpy(runtime, choice, environ, caged=caged)
    if choice.type == "pwa-node" and (choice.adapter is None or choice.adapter[0] == JS_DEBUG):
        return _node(runtime, choice, environ, caged=caged)
    if choice.type == "bun" and choice.adapter is None:
        return _inspector(runtime, choice, Kind.BUN, environ, caged=caged)
    if choice.adapter == (LLDB_DAP,) and _lldb_dap(environ) is None and _there(GDB, environ):
        choice = replace(choice, type=GDB, adapter=_GDB_ADAPTER)
    argv = _found(runtime, choice.adapter or choice.command or (), environ)
    if not any(place in word for word in argv for place in PLACES):
        return AdapterPlan(runtime, choice.type, Kind.DAP, argv, ptrace)
    plan = _listening(runtime, choice, argv, caged=caged)
    if choice.type != "go":
        return plan
    folder = "/tmp" if caged else tempfile.gettempdir()  # noqa: S108 - the cage's own
    output = f"{folder}/kaged-{secrets.token_hex(16)}"
    return replace(plan, output=output, start_s=BUILD_S)


def joining(plan: AdapterPlan, host: str, port: int, *, caged: bool) -> AdapterPlan:
    """Plan how a program that listens is attached to.

    One under debugpy has an adapter already, behind that very port; the others need ours.
    """
    if plan.type != "debugpy":
        return plan
    pipe = str(Path(__file__).with_name("port_pipe.py"))
    python, script = ("python3", INSIDE_PORT_PIPE) if caged else (sys.executable, pipe)
    return replace(
        plan,
        argv=(python, "-I", "-S", script, host, str(port)),
        mounts=((pipe, INSIDE_PORT_PIPE),) if caged else (),
    )


def _node(
    runtime: str, choice: AdapterChoice, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    """Plan js-debug where the operator has installed it, else Node's own inspector.

    js-debug and its program meet in a Unix socket, which no cage allows: in a cage it is always
    the inspector.
    """
    wanted = choice.adapter or ()
    path = environ.get("PATH", os.defpath)
    if caged or not wanted or shutil.which(wanted[0], path=path) is None:
        return _inspector(runtime, choice, Kind.NODE, environ, caged=caged)
    program, *flags = choice.command or ("node",)
    (node,) = _found(runtime, (program,), environ)
    argv = _found(runtime, wanted if len(wanted) > 1 else (*wanted, "${socket}"), environ)
    plan = _listening(runtime, choice, argv, caged=caged)
    return replace(plan, program=node, flags=tuple(flags))


def _inspector(
    runtime: str, choice: AdapterChoice, kind: Kind, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    program, *flags = choice.command or (kind.value.partition("-")[0],)
    found = _found(runtime, (program,), environ)
    relay = str(Path(__file__).with_name("inspector_relay.cjs"))
    return AdapterPlan(
        runtime,
        choice.type,
        kind,
        (*found, INSIDE_RELAY if caged else relay),
        needs_ptrace(choice),
        mounts=((relay, INSIDE_RELAY),) if caged else (),
        flags=tuple(flags),
    )


def _listening(
    runtime: str, choice: AdapterChoice, argv: tuple[str, ...], *, caged: bool
) -> AdapterPlan:
    relay = str(Path(__file__).with_name("adapter_relay.py"))
    # Delve's programs print where delve does; what others print there is about themselves.
    options = ("--program-output",) if choice.type == "go" else ()
    python = "python3" if caged else sys.executable
    started = (python, "-I", "-S", INSIDE_ADAPTER_RELAY if caged else relay, *options, "--", *argv)
    return AdapterPlan(
        runtime,
        choice.type,
        Kind.LISTENING,
        started,
        needs_ptrace(choice),
        mounts=((relay, INSIDE_ADAPTER_RELAY),) if caged else (),
    )


def _debugpy(
    runtime: str, choice: AdapterChoice, environ: Mapping[str, str], *, caged: bool
) -> AdapterPlan:
    """Plan debugpy: the daemon's own copy serves every Python, which need not have it."""
    own = importlib.util.find_spec("debugpy")
    argv = choice.adapter or ("python3", *_DEBUGPY_MODULE)
    if own is None or own.origin is None:
        return AdapterPlan(
            runtime, choice.type, Kind.DAP, _found(runtime, argv, environ, "debugpy"), False
        )
    package = Path(own.origin).parent
    prompt = str(Path(__file__).with_name("debugpy_adapter.py"))
    # Isolated: modules of the project, or of whoever started the daemon, are not the adapter's.
    if not caged:
        argv = (sys.executable, "-I", "-S", prompt, str(package))
        return AdapterPlan(runtime, choice.type, Kind.DAP, argv, False)
    inside = f"{INSIDE_DEBUGPY}/debugpy"
    mounts = ((str(package), inside),)
    if argv[1:] == _DEBUGPY_MODULE:
        argv = (argv[0], "-I", "-S", INSIDE_PROMPT, inside)
        mounts = (*mounts, (prompt, INSIDE_PROMPT))
    env = (("PYTHONPATH", INSIDE_DEBUGPY),)
    return AdapterPlan(runtime, choice.type, Kind.DAP, argv, False, mounts, env)


def _found(
    runtime: str, argv: tuple[str, ...], environ: Mapping[str, str], name: str = ""
) -> tuple[str, ...]:
    program = argv[0] if argv else ""
    found = _there(program, environ) if program else None
    if program == LLDB_DAP:
        found = _lldb_dap(environ)
    if found is None:
        known = name or PurePosixPath(program).name
        hint = _INSTALL.get(known, f"install {known} and put it on the daemon's PATH")
        raise ToolError(
            f"the debug adapter for {runtime} is not installed: {program or 'no command'}",
            code="dap_adapter_not_found",
            fix=hint,
            detail={"runtime": runtime, "command": list(argv), "install": hint},
        )
    return (found, *argv[1:])


def too_old(plan: AdapterPlan) -> ToolError:
    """Return the error for a gdb that does not speak DAP."""
    hint = f"install gdb 14 or newer with Python, or lldb: {_INSTALL[LLDB_DAP]}"
    return ToolError(
        f"the debug adapter for {plan.runtime} is too old: {plan.argv[0]} does not speak DAP",
        code="dap_adapter_not_found",
        fix=hint,
        detail={"runtime": plan.runtime, "command": list(plan.argv), "install": hint},
    )


def _there(program: str, environ: Mapping[str, str]) -> str | None:
    return shutil.which(program, path=environ.get("PATH", os.defpath))


def _lldb_dap(environ: Mapping[str, str]) -> str | None:
    """Find lldb-dap. Debian and Ubuntu install it under its version only."""
    versions = range(_LLDB_NEWEST, _LLDB_OLDEST - 1, -1)
    names = (LLDB_DAP, *(f"{LLDB_DAP}-{number}" for number in versions))
    return next(filter(None, (_there(name, environ) for name in names)), None)
