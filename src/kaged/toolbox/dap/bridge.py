"""`DapBridge`: the debug sessions of one project, one per agent at a time."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, field
from typing import Final

from kaged.base import Ids, JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import CageProcess, Spawner
from kaged.config.serverchoice import AdapterChoice
from kaged.kernel.policy import SeccompProfile
from kaged.toolbox.dap.adapters import (
    NO_DAP,
    AdapterPlan,
    needs_ptrace,
    plan_adapter,
    require_known,
    too_old,
)
from kaged.toolbox.dap.backend import (
    CageLauncher,
    ProcessBackend,
    launch_uncaged,
    start_backend,
)
from kaged.toolbox.dap.building import build_program
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.toolbox.dap.interpreter import Interpreter, find_interpreter, within_reach
from kaged.toolbox.dap.session import DebugSession, ended
from kaged.toolbox.dap.state import EndReason, State
from kaged.tools import ToolInvocation
from kaged.tools.errors import ToolError, ToolRefused

WAIT_S: Final = 30.0  # AT-DAP-40
HEARD_CHARS: Final = 2000

Emit = Callable[[str, JsonObject], None]


@dataclass(eq=False)
class DapBridge:
    """Starts, finds and ends the debug sessions of a project's agents.

    `adapters` are the debuggers as they are chosen for the project, by runtime; `changeable` tells
    whether an agent in a cage may write something at or below a path.
    """

    root: str
    adapters: Mapping[str, AdapterChoice]
    spawner: Spawner
    launcher: CageLauncher | None
    _: KW_ONLY
    ids: Ids
    emit: Emit
    environ: Mapping[str, str]
    changeable: Callable[[str], bool]
    wait_s: float = WAIT_S
    _sessions: dict[tuple[str, str], DebugSession] = field(default_factory=dict, init=False)

    # -- finding ---------------------------------------------------------------------------------

    def session(self, call: ToolInvocation) -> DebugSession:
        """Return the caller's own debug session. Raises DapSessionEnded when it has none."""
        found = self._sessions.get(_owner(call))
        if found is None or found.state is State.ENDED:
            raise ended()
        return found

    # -- starting --------------------------------------------------------------------------------

    def plan(self, call: ToolInvocation, runtime: str) -> AdapterPlan:
        """Find the runtime's debugger, if the caller's cage allows it; starts nothing.

        Raises:
            ToolError: `dap_adapter_not_found`; there is none, or it is not installed.
            ToolRefused: `dap_requires_relaxed_seccomp`; it needs ptrace and the cage has none.
            ToolError: `dap_session_active`; the caller debugs something already.
        """
        known = self._sessions.get(_owner(call))
        if known is not None and known.alive:
            raise ToolError(
                f"you already have a debug session ({known.id})",
                code="dap_session_active",
                fix="disconnect it first",
            )
        choice = require_known(runtime, self.adapters)
        policy = call.context.cage_policy
        if policy is not None:
            if needs_ptrace(choice) and policy.seccomp is not SeccompProfile.RELAXED:
                raise ToolRefused(
                    f"the {runtime} debugger needs ptrace, which your cage does not allow",
                    code="dap_requires_relaxed_seccomp",
                    fix="ask the operator for `seccomp: relaxed` in your cage, or hand this to "
                    "the primary agent",
                    detail="seccomp relaxed",
                )
            if self.launcher is None:
                raise ToolError(
                    "cages are not available on this host, and a caged agent's debugger never "
                    "runs without one",
                    code="dap_adapter_not_found",
                    fix="ask the operator to run `kaged doctor`",
                    detail={"runtime": runtime, "command": None, "install": None},
                )
        return plan_adapter(runtime, choice, self.environ, caged=policy is not None)

    async def build(
        self, call: ToolInvocation, command: Sequence[str], env: Mapping[str, str], cwd: str
    ) -> None:
        """Build the program that is about to be debugged. Raises DapRequestFailed."""

        async def start(plan: AdapterPlan, mark: str) -> CageProcess:
            return await self._spawn(call, plan, cwd, mark)

        await build_program(start, command, env)

    async def start(
        self,
        call: ToolInvocation,
        plan: AdapterPlan,
        command: str,
        arguments: JsonObject,
        *,
        cwd: str,
        script: str | None,
    ) -> DebugSession:
        """Start an adapter and open a session on it; leaves nothing behind when that fails.

        Raises `dap_adapter_not_found`, DapRequestFailed and DapSessionEnded.
        """
        owner = _owner(call)
        session = DebugSession(
            id=self.ids.tagged("dap"),
            runtime=plan.runtime,
            run_id=call.context.run_id,
            attached=command == "attach",
            on_end=lambda one, reason: self._ended(owner, one, reason),
            start_s=plan.start_s,
        )
        # In its place at once: of two that begin together the second finds the first.
        before, self._sessions[owner] = self._sessions.get(owner), session
        backend: ProcessBackend | None = None
        try:
            if before is not None:
                await before.end(EndReason.DISCONNECT)
            backend = await start_backend(
                lambda: self._spawn(call, plan, cwd, session.id),
                plan,
                session.heard,
                session.closed,
                session.id,
            )
            if session.over:
                raise ended()  # the run or the project ended meanwhile
            session.backend = backend
            await session.open(command, arguments)
            if session.over:
                raise ended()
        except BaseException as error:
            if self._sessions.get(owner) is session:
                del self._sessions[owner]
            session.mark_unborn()
            heard = session.output.take()[-HEARD_CHARS:].strip()
            said = ""
            if backend is not None:
                await backend.end()
                said = backend.recent_output()
            if isinstance(error, TimeoutError):
                raise DapRequestFailed(
                    f"the debug adapter did not finish its start{said}", fix="try again"
                ) from error
            if isinstance(error, DapRequestFailed) and heard:
                # Some refuse with no more than a hint at what they have printed.
                raise DapRequestFailed(
                    f"{error.message}; it printed: {heard}",
                    fix=error.fix or "",
                    detail=error.detail,
                ) from error
            if isinstance(error, DapSessionEnded) and NO_DAP in said:
                raise too_old(plan) from error
            if isinstance(error, DapSessionEnded) and said:
                raise DapSessionEnded(error.message + said, fix=error.fix or "") from error
            raise
        self.emit(
            "debug.session_started",
            {
                "debug_session_id": session.id,
                "runtime": plan.runtime,
                "script": script,
                "caller": call.context.caller,
            },
        )
        return session

    async def _spawn(
        self, call: ToolInvocation, plan: AdapterPlan, cwd: str, mark: str
    ) -> CageProcess:
        policy = call.context.cage_policy
        if policy is None:
            return await launch_uncaged(self.spawner, plan, cwd, self.environ, mark)
        assert self.launcher is not None  # `plan` saw to it
        return await self.launcher(policy, plan, cwd)

    # -- ending ----------------------------------------------------------------------------------

    async def end_run(self, run_id: str) -> None:
        """End the sessions of a run that is over (AT-DAP-05)."""
        for session in list(self._sessions.values()):
            if session.run_id == run_id:
                await session.end(EndReason.RUN_ENDED)

    async def close(self) -> None:
        """End every session: the project is unloaded, or the daemon ends."""
        for session in list(self._sessions.values()):
            await session.end(EndReason.RUN_ENDED)

    def _ended(self, owner: tuple[str, str], session: DebugSession, reason: EndReason) -> None:
        if self._sessions.get(owner) is session:
            del self._sessions[owner]
        self.emit(
            "debug.session_ended",
            {
                "debug_session_id": session.id,
                "reason": reason.value,
                "exit_code": session.exit_code,
            },
        )

    def hit(self, session: DebugSession, number: int, path: str, line: int) -> None:
        """Put a stop at a breakpoint on record."""
        self.emit(
            "debug.breakpoint_hit",
            {
                "debug_session_id": session.id,
                "breakpoint_id": number,
                "path": path,
                "line": line,
            },
        )

    def python(self, *, caged: bool) -> str:
        """Return the Python of the host, or that of every cage."""
        if caged:
            return "python3"
        found = shutil.which("python3", path=self.environ.get("PATH", os.defpath))
        # The daemon may have been started in the environment of a project.
        if found is None or within_reach(found, self.changeable):
            return sys.executable
        return found

    def interpreter(self, call: ToolInvocation, start: str) -> Interpreter:
        """Return which Python runs what is debugged: that of the project around `start`, if any."""
        caged = call.context.cage_policy is not None
        return find_interpreter(
            start,
            self.root,
            self.python(caged=caged),
            caged=caged,
            readable=call.readable,
            changeable=self.changeable,
        )


def _owner(call: ToolInvocation) -> tuple[str, str]:
    return call.context.session_id, call.context.caller
