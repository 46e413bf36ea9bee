"""`ProcessBackend`: what a session runs on, a debug adapter or a runtime's own inspector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, assert_never

from kaged.base import JsonObject
from kaged.cage.orphan_processes import end_orphans
from kaged.toolbox.dap.adapters import AdapterPlan, Kind
from kaged.toolbox.dap.bun_inspector import BunDialect
from kaged.toolbox.dap.dialect import Dialect
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.family import Family
from kaged.toolbox.dap.inspector import InspectorAdapter
from kaged.toolbox.dap.node_inspector import NodeDialect
from kaged.toolbox.dap.process import AdapterProcess
from kaged.toolbox.dap.protocol import DapConnection

if TYPE_CHECKING:
    from kaged.cage import CageProcess
    from kaged.toolbox.dap.protocol import Adapter, OnClosed, OnEvent

RECENT_OUTPUT_CHARS: Final = 1000


@dataclass(slots=True)
class ProcessBackend:
    """A session's adapter and the process behind it."""

    adapter: Adapter
    running: AdapterProcess
    at_once: bool = False
    spare_program: bool = False
    built: str | None = None

    @property
    def can_spare(self) -> bool:
        """Whether a program that it started can go on without it: not in a cage, which goes too."""
        ours = isinstance(self.adapter, Family) and self.adapter.runs_program
        return not (self.running.process.caged or self.at_once or ours)

    async def end(self) -> int | None:
        """End everything; returns the adapter's exit code where there is one.

        A program that its debugger started in a session of its own is not in the adapter's group.
        Without a cage it is found by its mark, unless it was let go on purpose.
        """
        if self.at_once:
            # A runtime knows no goodbye, and its program may ignore signals: the group at once.
            self.running.process.kill()
        await self.adapter.close()
        code = await self.running.end()
        if not self.running.process.caged and not self.spare_program:
            await asyncio.to_thread(end_orphans, self.running.mark)
        if self.built is not None and not self.running.process.caged:
            # The debugger removes what it has built, unless it was killed. A cage's goes with it.
            await asyncio.to_thread(Path(self.built).unlink, missing_ok=True)
        return code

    def recent_output(self) -> str:
        """Return the end of the adapter's standard error, to be shown with a failure."""
        text = "\n".join(self.running.stderr.lines)[-RECENT_OUTPUT_CHARS:].strip()
        return f"; its recent output: {text}" if text else ""


async def start_backend(
    start: Callable[[], Awaitable[CageProcess]],
    plan: AdapterPlan,
    on_event: OnEvent,
    on_closed: OnClosed,
    mark: str,
) -> ProcessBackend:
    """Start what a plan says and return what a session talks to.

    `mark` is what an uncaged process was started with, so that all it leaves behind can be found.
    Raises DapAdapterNotFound when it could not be started.
    """
    dialect: Dialect
    match plan.kind:
        case Kind.DAP:
            spoken = DapConnection(on_event, _refuse, on_closed)
            running = await AdapterProcess.start(start, plan, spoken, spoken.close, mark)
            return ProcessBackend(spoken, running)
        case Kind.LISTENING:
            family = Family(on_event, on_closed, tells_last=plan.type == "go")
            running = await AdapterProcess.start(start, plan, family.channels, family.close, mark)
            return ProcessBackend(family, running, built=plan.output)
        case Kind.NODE:
            dialect = NodeDialect()
        case Kind.BUN:
            dialect = BunDialect()
        case _:
            assert_never(plan.kind)
    inspector = InspectorAdapter(dialect, on_event)
    relay = DapConnection(inspector.heard, _refuse, on_closed)
    running = await AdapterProcess.start(start, plan, relay, relay.close, mark)
    inspector.use(relay)
    return ProcessBackend(inspector, running, at_once=True)


async def _refuse(command: str, arguments: JsonObject) -> JsonObject:
    # Neither reverse request is offered in `initialize`: the adapter starts the program itself, in
    # the same cage.
    del arguments
    raise DapRequestFailed(f"{command} is not offered by this client")
