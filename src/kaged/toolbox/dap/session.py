"""`DebugSession`: one program under a debugger, from the handshake to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import Any, Final

from kaged.base import JsonObject, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.toolbox.dap.backend import Adapter, ProcessBackend
from kaged.toolbox.dap.breakpoints import (
    Breakpoints,
    OtherBreakpoint,
    SourceBreakpoint,
    note_answers,
)
from kaged.toolbox.dap.errors import DapRequestFailed, DapSessionEnded
from kaged.toolbox.dap.protocol import REQUEST_LIMIT_S, Taking
from kaged.toolbox.dap.state import CapturedOutput, EndReason, Frames, State, Stop
from kaged.tools.errors import ToolError

HANDSHAKE_S: Final = 30.0
DISCONNECT_S: Final = 2.0

_log = get_logger(__name__)


@dataclass(slots=True)
class DebugSession:
    """One debug session of one agent. `on_end` hears once why it ended."""

    id: str
    runtime: str
    run_id: str
    attached: bool
    on_end: Callable[[DebugSession, EndReason], None]
    start_s: float = HANDSHAKE_S
    backend: ProcessBackend | None = None
    state: State = State.STARTING
    capabilities: JsonObject = field(default_factory=dict)
    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    stop: Stop | None = None
    exit_code: int | None = None
    frames: Frames = field(default_factory=Frames)
    output: CapturedOutput = field(default_factory=CapturedOutput)
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _initialized: bool = False
    _entry_expected: bool = False
    _told: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: Tasks = field(default_factory=lambda: Tasks("debug session", _failed))

    # -- opening ---------------------------------------------------------------------------------

    async def open(self, command: str, arguments: JsonObject) -> None:
        """Run the handshake: initialize, launch or attach, breakpoints, configurationDone.

        The answer to launch may come before or after configurationDone; `initialized` may never
        come when launch fails. Raises DapRequestFailed and DapSessionEnded.
        """
        adapter = self.adapter
        self._entry_expected = arguments.get("stopOnEntry") is True
        await adapter.request("initialize", dict(_CLIENT), HANDSHAKE_S, self.capabilities.update)
        launching = self._tasks.start(
            adapter.request(command, arguments, self.start_s), f"{command} {self.id}"
        )
        try:
            await self._until(lambda: self._initialized or launching.done(), self.start_s)
            if launching.done() and not self._initialized:
                await launching
            for path in list(self.breakpoints.sources):
                await self.send_breakpoints(path)
            if self.capabilities.get("exceptionBreakpointFilters"):
                await adapter.request("setExceptionBreakpoints", {"filters": []})
            if self.supports("supportsConfigurationDoneRequest"):
                await adapter.request("configurationDone", None, self.start_s)
            await launching
        except BaseException:
            launching.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await launching
            raise
        if self.state is State.STARTING:
            self.state = State.RUNNING

    # -- what it is ------------------------------------------------------------------------------

    @property
    def adapter(self) -> Adapter:
        """Whom to ask. Raises DapSessionEnded when nobody is left."""
        if self.backend is None or self.state is State.ENDED:
            raise ended()
        return self.backend.adapter

    @property
    def alive(self) -> bool:
        """Whether a program is still under the debugger."""
        return self.state in (State.STARTING, State.RUNNING, State.STOPPED)

    @property
    def over(self) -> bool:
        """Whether the session itself has ended."""
        return self.state is State.ENDED

    def supports(self, capability: str) -> bool:
        """Return whether the adapter said that it can do something."""
        return self.capabilities.get(capability) is True

    def require(self, capability: str, what: str) -> None:
        """Refuse what the adapter cannot do. Raises `dap_unsupported`."""
        if not self.supports(capability):
            raise ToolError(
                f"the {self.runtime} debugger does not support {what} ({capability})",
                code="dap_unsupported",
                detail={"capability": capability},
            )

    def require_stopped(self) -> Stop:
        """Return the stop.

        Raises `dap_not_stopped` while the program runs, DapSessionEnded after.
        """
        if self.state is State.STOPPED and self.stop is not None:
            return self.stop
        if self.alive:
            raise ToolError(
                "the program is running",
                code="dap_not_stopped",
                fix="pause it, or continue to a breakpoint",
            )
        raise ended()

    # -- moving ----------------------------------------------------------------------------------

    async def resume(self, command: str, thread_id: int, wait_s: float) -> None:
        """Let the program go on and wait for the next stop or its end, or for the time to be up."""
        before = self.stop
        self._going()
        try:
            await self.adapter.request(command, {"threadId": thread_id})
        except DapRequestFailed:
            if self.state is State.RUNNING and before is not None:
                # It did not go on. What was known of its stack is asked for anew.
                self.state, self.stop = State.STOPPED, before
            raise
        await self.settled(wait_s)

    async def settled(self, wait_s: float) -> bool:
        """Wait until the program does not run; False when it still does."""
        try:
            await self._until(lambda: self.state is not State.RUNNING, wait_s)
        except TimeoutError:
            return False
        return True

    def _going(self) -> None:
        self.state = State.RUNNING
        self.stop = None
        self.frames.forget()

    # -- asking ----------------------------------------------------------------------------------

    async def ask(
        self, command: str, arguments: JsonObject | None = None, taking: Taking | None = None
    ) -> JsonObject:
        """Ask the adapter. Raises DapRequestFailed and DapSessionEnded."""
        return await self.adapter.request(command, arguments, REQUEST_LIMIT_S, taking)

    async def send_breakpoints(self, path: str) -> None:
        """Send all breakpoints of a file to the adapter, which replaces what it knew."""
        async with self._sending:
            known = self.breakpoints.sources.get(path, {})
            sent = sorted(known.values(), key=lambda one: one.id)
            source: JsonObject = {"source": {"path": path}, "sourceModified": False}
            await self._send("setBreakpoints", source, sent, [one.wanted() for one in sent])

    async def send_others(self, command: str, table: dict[Any, OtherBreakpoint]) -> None:
        """Send all breakpoints on instructions, or on data, to the adapter."""
        async with self._sending:
            sent = list(table.values())
            await self._send(command, {}, sent, [one.wanted for one in sent])

    async def _send(
        self,
        command: str,
        arguments: JsonObject,
        sent: Sequence[SourceBreakpoint | OtherBreakpoint],
        wanted: list[JsonObject],
    ) -> None:
        # One list at a time: the adapter answers by position. The answer is taken before events
        # that follow it, since those speak of numbers that the answer tells.
        await self.ask(
            command,
            {**arguments, "breakpoints": [*wanted]},
            lambda body: note_answers(sent, body),
        )

    async def frame(self, position: int) -> JsonObject:
        """Return the frame at a position of the current stack, 0 being the top.

        Raises DapRequestFailed when there is no such frame.
        """
        stop = self.require_stopped()
        frames = await self.frames.top(stop.thread_id, position + 1, self.ask)
        if position >= len(frames):
            raise DapRequestFailed(
                f"there is no frame {position}; the stack has {len(frames)}",
                fix="use stack_trace to see the frames",
            )
        return frames[position]

    # -- hearing ---------------------------------------------------------------------------------

    def heard(self, event: str, body: JsonObject) -> None:
        """Take an event of the adapter's."""
        match event:
            case "initialized":
                self._initialized = True
            case "stopped":
                self._stopped(body)
            case "continued":
                if self.state is State.STOPPED:
                    self._going()
            case "exited":
                code = body.get("exitCode")
                self.exit_code = code if type(code) is int else None
                self._over()
            case "terminated":
                self._over()
            case "output":
                self.output.hear(body)
            case "breakpoint":
                self.breakpoints.note_change(body)
            case "capabilities":
                more = body.get("capabilities")
                self.capabilities |= more if isinstance(more, dict) else {}
            case _:
                return
        self._news.set()

    def _stopped(self, body: JsonObject) -> None:
        thread, reason = body.get("threadId"), body.get("reason")
        if self._entry_expected and "SIGSTOP" in str(body.get("description")):
            reason = "entry"  # how a native debugger holds a program before it begins
        self._entry_expected = False
        self.frames.forget()
        self.stop = Stop(
            reason if isinstance(reason, str) else "unknown",
            thread if type(thread) is int else 1,
            body,
        )
        self.state = State.STOPPED

    def _over(self) -> None:
        if self.alive:
            self.state = State.EXITED
            self.stop = None
            self.frames.forget()

    def closed(self) -> None:
        """Called when the adapter ended without having been asked to."""
        if self.state in (State.STARTING, State.EXITED):
            # Whoever opens it hears of it by himself; a program that ended by itself has a session
            # until somebody says otherwise.
            return
        if self.state is not State.ENDED:
            self._tasks.start(self.end(EndReason.CRASH), f"crash {self.id}")

    # -- ending ----------------------------------------------------------------------------------

    async def disconnect(self, *, terminate: bool) -> bool:
        """Disconnect the adapter and end it; returns whether the program was ended too."""
        if self.backend is not None and self.backend.adapter.is_open:
            arguments: JsonObject = {}
            if self.supports("supportTerminateDebuggee") or self.attached or terminate:
                arguments["terminateDebuggee"] = terminate
            with contextlib.suppress(DapRequestFailed, DapSessionEnded):
                await self.backend.adapter.request("disconnect", arguments, DISCONNECT_S)
        backend = self.backend
        spared = self.supports("supportTerminateDebuggee") and (
            backend is not None and backend.can_spare
        )
        kept = not terminate and (self.attached or spared)
        if backend is not None:
            backend.spare_program = kept
        await self.end(EndReason.DISCONNECT)
        return not kept

    def mark_unborn(self) -> None:
        """Note that the session never came to be: its end is nobody's news."""
        self.state = State.ENDED
        self.backend = None
        self._told = True

    async def end(self, reason: EndReason) -> None:
        """End adapter and program, whatever state they are in. Told of once."""
        backend, self.backend = self.backend, None
        self.state = State.ENDED
        self._news.set()
        if backend is not None:
            await backend.end()
        if not self._told:
            self._told = True
            self.on_end(self, reason)

    async def _until(self, holds: Callable[[], bool], limit_s: float) -> None:
        async with asyncio.timeout(limit_s):
            while not holds() and self.state is not State.ENDED:
                self._news.clear()
                waiting = asyncio.wait_for(self._news.wait(), _LOOK_S)
                with contextlib.suppress(TimeoutError):
                    await waiting


_LOOK_S: Final = 0.25
"""How often a waiter looks by itself, for conditions that no event announces."""

_CLIENT: Final[JsonObject] = {
    "clientID": "kaged",
    "clientName": "kaged",
    "adapterID": "kaged",
    "locale": "en",
    "linesStartAt1": True,
    "columnsStartAt1": True,
    "pathFormat": "path",
    "supportsVariableType": True,
    "supportsRunInTerminalRequest": False,
    "supportsMemoryReferences": True,
    "supportsStartDebuggingRequest": False,
}


def ended() -> DapSessionEnded:
    """Make the error for an action without a live session."""
    return DapSessionEnded("there is no debug session", fix="start one with launch or attach")


def _failed(name: str, error: BaseException) -> None:
    # A refused launch is awaited by whoever sent it; this is the second report of it.
    _log.debug("dap.task_ended", task=name, error=repr(error))
