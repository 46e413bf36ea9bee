"""`ProcessBackend`: what a session runs on, a debug adapter or a runtime's own inspector.

Its process is caged as its caller, or has the daemon's powers when the caller has no cage.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Final, TypeAlias, assert_never

from kaged.base import JsonObject, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import (
    CageKind,
    CageProcess,
    CageRequest,
    HostMount,
    Spawner,
    Uncaged,
    UncagedRequest,
)
from kaged.cage.orphan_processes import MARK, end_orphans, mark_value
from kaged.kernel.policy import CagePolicy
from kaged.peer import StderrTail
from kaged.toolbox.dap.adapters import AdapterPlan, Kind
from kaged.toolbox.dap.channels import Channels
from kaged.toolbox.dap.dialects import BunDialect, NodeDialect
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.family import Family
from kaged.toolbox.dap.inspector import InspectorAdapter
from kaged.toolbox.dap.protocol import DapConnection, OnClosed, OnEvent
from kaged.tools.errors import ToolError

RECENT_OUTPUT_CHARS: Final = 1000
TERM_GRACE_S: Final = 1.0

Adapter: TypeAlias = DapConnection | Family | InspectorAdapter
"""What a session talks to: takes DAP requests and tells of DAP events."""
CageLauncher: TypeAlias = Callable[[CagePolicy, AdapterPlan, str], Awaitable[CageProcess]]
"""Starts an adapter inside the cage of a policy, in a working directory."""

_log = get_logger(__name__)


def caged_launcher(spawner: Spawner) -> CageLauncher:
    """Return the launcher that every caged caller's adapters go through."""

    async def launch(policy: CagePolicy, plan: AdapterPlan, cwd: str) -> CageProcess:
        return await spawner.spawn(
            CageRequest(
                f"debug {plan.runtime}",
                policy,
                plan.argv,
                kind=CageKind.AGENT,
                cwd=cwd,
                fixed_env=plan.env,
                mounts=tuple(HostMount(source, dest) for source, dest in plan.mounts),
            )
        )

    return launch


async def launch_uncaged(
    spawner: Spawner, plan: AdapterPlan, cwd: str, environ: Mapping[str, str], mark: str
) -> CageProcess:
    """Start an adapter for a caller without a cage, in the daemon's environment."""
    return await spawner.spawn(
        UncagedRequest(
            f"debug {plan.runtime}",
            Uncaged("the debugger of an agent without a cage"),
            plan.argv,
            cwd=cwd,
            env=tuple({**environ, **dict(plan.env), MARK: mark_value(mark)}.items()),
        )
    )


@dataclass(slots=True)
class ProcessBackend:
    """A session's adapter and the process behind it, with the tail of its stderr.

    `mark` is what an uncaged process was started with, so that all it leaves behind can be found.
    `spare_program`: the program goes on when the session ends.
    """

    adapter: Adapter
    process: CageProcess
    stderr: StderrTail
    mark: str
    at_once: bool = False
    spare_program: bool = False
    built: str | None = None

    @property
    def can_spare(self) -> bool:
        """Whether a program that it started can go on without it: not in a cage, which goes too."""
        ours = isinstance(self.adapter, Family) and self.adapter.runs_program
        return not (self.process.caged or self.at_once or ours)

    async def end(self) -> None:
        """End the adapter with all its children. Closing first: some live until their input ends.

        A program that its debugger started in a session of its own is not in the adapter's group.
        Without a cage it is found by its mark, unless it was let go on purpose.
        """
        if self.at_once:
            # A runtime knows no goodbye, and its program may ignore signals: the group at once.
            self.process.kill()
        await self.adapter.close()
        await self.process.stop(term_grace_s=TERM_GRACE_S)
        self.process.close()
        if not self.process.caged and not self.spare_program:
            await asyncio.to_thread(end_orphans, self.mark)
        if self.built is not None and not self.process.caged:
            # The debugger removes what it has built, unless it was killed. A cage's goes with it.
            await asyncio.to_thread(Path(self.built).unlink, missing_ok=True)

    def recent_output(self) -> str:
        """Return the end of the adapter's standard error, to be shown with a failure."""
        text = "\n".join(self.stderr.lines)[-RECENT_OUTPUT_CHARS:].strip()
        return f"; its recent output: {text}" if text else ""


async def start_backend(
    start: Callable[[], Awaitable[CageProcess]],
    plan: AdapterPlan,
    on_event: OnEvent,
    on_closed: OnClosed,
    mark: str,
) -> ProcessBackend:
    """Start what a plan says and return what a session talks to. Raises `dap_adapter_not_found`."""
    match plan.kind:
        case Kind.DAP:
            spoken = DapConnection(on_event, _refuse, on_closed)
            return ProcessBackend(spoken, *await _started(start, plan, spoken), mark)
        case Kind.LISTENING:
            family = Family(on_event, on_closed, tells_last=plan.type == "go")
            running = await _started(start, plan, family.channels)
            return ProcessBackend(family, *running, mark, built=plan.output)
        case Kind.NODE | Kind.BUN:
            dialect = NodeDialect() if plan.kind is Kind.NODE else BunDialect()
            inspector = InspectorAdapter(dialect, on_event)
            relay = DapConnection(inspector.heard, _refuse, on_closed)
            running = await _started(start, plan, relay)
            inspector.use(relay)
            return ProcessBackend(inspector, *running, mark, at_once=True)
        case _:
            assert_never(plan.kind)


async def _started(
    start: Callable[[], Awaitable[CageProcess]],
    plan: AdapterPlan,
    stream: DapConnection | Channels,
) -> tuple[CageProcess, StderrTail]:
    """Start an adapter and let `stream` speak over its standard streams."""
    try:
        process = await start()
    except KagedError as error:
        raise ToolError(
            f"the debug adapter for {plan.runtime} did not start: {error.message}",
            code="dap_adapter_not_found",
            fix=error.fix or "",
            detail={"runtime": plan.runtime, "command": list(plan.argv), "install": None},
        ) from error
    try:
        tail = StderrTail(lambda line: _log.debug("dap.stderr", line=line[:500]))
        await process.connect_stderr(lambda: tail)
        writer, _ = await process.connect_stdin(asyncio.BaseProtocol)
        stream.write_to(writer)
        await process.connect_stdout(lambda: stream)
    except BaseException:
        process.close()
        raise
    return process, tail


async def _refuse(command: str, arguments: JsonObject) -> JsonObject:
    # Neither reverse request is offered in `initialize`: the adapter starts the program itself, in
    # the same cage.
    del arguments
    raise DapRequestFailed(f"{command} is not offered by this client")
