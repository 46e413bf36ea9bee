"""`ProcessBackend`: what a session runs on, a debug adapter or a runtime's own inspector."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

from kaged.base import JsonObject
from kaged.cage.stragglers import end_stragglers
from kaged.toolbox.dap.adapters import AdapterPlan, Kind
from kaged.toolbox.dap.bun_inspector import BunDialect
from kaged.toolbox.dap.dialect import Dialect
from kaged.toolbox.dap.errors import DapRequestFailed
from kaged.toolbox.dap.inspector import InspectorAdapter
from kaged.toolbox.dap.node_inspector import NodeDialect
from kaged.toolbox.dap.process import AdapterProcess

if TYPE_CHECKING:
    from kaged.cage import CageProcess
    from kaged.toolbox.dap.protocol import Adapter, OnClosed, OnEvent

LAST_WORDS_CHARS: Final = 1000


@dataclass(slots=True)
class ProcessBackend:
    """A session's adapter and the process behind it."""

    adapter: Adapter
    running: AdapterProcess
    at_once: bool = False
    spare_program: bool = False

    async def end(self) -> int | None:
        """End everything; gives the adapter's exit code where there is one.

        A program that its debugger started in a session of its own is not in the adapter's group.
        Without a cage it is found by its mark, unless it was let go on purpose.
        """
        if self.at_once:
            # A runtime knows no goodbye, and its program may ignore signals: the group at once.
            self.running.process.kill()
        await self.adapter.close()
        code = await self.running.end()
        if not self.running.process.caged and not self.spare_program:
            await asyncio.to_thread(end_stragglers, self.running.mark)
        return code

    def last_words(self) -> str:
        """Give the end of the adapter's standard error, to be told with a failure."""
        text = "\n".join(self.running.stderr.lines)[-LAST_WORDS_CHARS:].strip()
        return f"; its last words: {text}" if text else ""


async def start_backend(
    start: Callable[[], Awaitable[CageProcess]],
    plan: AdapterPlan,
    on_event: OnEvent,
    on_closed: OnClosed,
    mark: str,
) -> ProcessBackend:
    """Start what a plan says and give what a session talks to.

    `mark` is what an uncaged process was started with, so that all it leaves behind can be found.

    Raises:
        DapAdapterNotFound: it could not be started.
    """
    dialect: Dialect
    match plan.kind:
        case Kind.DAP:
            running = await AdapterProcess.start(start, plan, on_event, _refuse, on_closed, mark)
            return ProcessBackend(running.connection, running)
        case Kind.NODE:
            dialect = NodeDialect()
        case Kind.BUN:
            dialect = BunDialect()
        case _:
            assert_never(plan.kind)
    inspector = InspectorAdapter(dialect, on_event)
    running = await AdapterProcess.start(start, plan, inspector.heard, _refuse, on_closed, mark)
    inspector.use(running.connection)
    return ProcessBackend(inspector, running, at_once=True)


async def _refuse(command: str, arguments: JsonObject) -> JsonObject:
    # Neither reverse request is offered in `initialize`: the adapter starts the program itself, in
    # the same cage.
    del arguments
    raise DapRequestFailed(f"{command} is not offered by this client")


__all__ = ["ProcessBackend", "start_backend"]
