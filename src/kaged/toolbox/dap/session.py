"""`DebugSession`: one program under a debugger, from the handshake to its end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol

import structlog

from kaged.base import JsonObject, Tasks
from kaged.toolbox.dap.breakpoints import (
    Breakpoints,
    OtherBreakpoint,
    SourceBreakpoint,
    note_answers,
)
from kaged.toolbox.dap.errors import (
    DapNotStopped,
    DapRequestFailed,
    DapSessionEnded,
    DapUnsupported,
)
from kaged.toolbox.dap.protocol import REQUEST_LIMIT_S, Adapter, Taking

OUTPUT_LIMIT_CHARS: Final = 64 * 1024
HANDSHAKE_S: Final = 30.0
DISCONNECT_S: Final = 2.0
MAX_FRAMES: Final = 10_000

_log = structlog.get_logger(__name__)


class State(StrEnum):
    """What the debugged program is doing."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    EXITED = "exited"
    ENDED = "ended"


class EndReason(StrEnum):
    """Why a debug session ended, as the audit log names it (AT-AUD-10)."""

    DISCONNECT = "disconnect"
    CRASH = "crash"
    RUN_ENDED = "run_ended"


class Backend(Protocol):
    """What a session runs on: the adapter to ask, and how to end it."""

    spare_program: bool  # the program goes on when the session ends

    @property
    def adapter(self) -> Adapter:
        """Whom to ask."""
        ...

    async def end(self) -> int | None:
        """End everything; gives the exit code where there is one."""
        ...


@dataclass(frozen=True, slots=True)
class Stop:
    """Where and why the program stopped."""

    reason: str
    thread_id: int
    body: JsonObject


@dataclass(slots=True)
class DebugSession:
    """One debug session of one agent. `on_end` hears once why it ended."""

    id: str
    runtime: str
    run_id: str
    attached: bool
    on_end: Callable[[DebugSession, EndReason], None]
    backend: Backend | None = None
    state: State = State.STARTING
    capabilities: JsonObject = field(default_factory=dict)
    breakpoints: Breakpoints = field(default_factory=Breakpoints)
    stop: Stop | None = None
    exit_code: int | None = None
    frames: dict[int, list[JsonObject]] = field(default_factory=dict)
    _output: list[str] = field(default_factory=list)
    _output_chars: int = 0
    _sending: asyncio.Lock = field(default_factory=asyncio.Lock)
    _initialized: bool = False
    _told: bool = False
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _tasks: Tasks = field(default_factory=lambda: Tasks("debug session", _failed))

    # -- opening ---------------------------------------------------------------------------------

    async def open(self, command: str, arguments: JsonObject) -> None:
        """Shake hands: initialize, launch or attach, breakpoints, configurationDone.

        The answer to launch may come before or after configurationDone; `initialized` may never
        come when launch fails.

        Raises:
            DapRequestFailed: the adapter refused.
            DapSessionEnded: it is gone.
        """
        adapter = self.adapter
        await adapter.request("initialize", dict(_CLIENT), HANDSHAKE_S, self.capabilities.update)
        launching = self._tasks.start(
            adapter.request(command, arguments, HANDSHAKE_S), f"{command} {self.id}"
        )
        try:
            await self._until(lambda: self._initialized or launching.done(), HANDSHAKE_S)
            if launching.done() and not self._initialized:
                await launching
            for path in list(self.breakpoints.sources):
                await self.send_breakpoints(path)
            if self.capabilities.get("exceptionBreakpointFilters"):
                await adapter.request("setExceptionBreakpoints", {"filters": []})
            if self.supports("supportsConfigurationDoneRequest"):
                await adapter.request("configurationDone", None, HANDSHAKE_S)
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
        """Say whether the adapter said that it can do something."""
        return self.capabilities.get(capability) is True

    def require(self, capability: str, what: str) -> None:
        """Refuse what the adapter cannot do. Raises DapUnsupported."""
        if not self.supports(capability):
            raise DapUnsupported(
                f"the {self.runtime} debugger does not support {what} ({capability})",
                detail={"capability": capability},
            )

    def require_stopped(self) -> Stop:
        """Give the stop. Raises DapNotStopped while the program runs, DapSessionEnded after."""
        if self.state is State.STOPPED and self.stop is not None:
            return self.stop
        if self.alive:
            raise DapNotStopped(
                "the program is running", fix="pause it, or continue to a breakpoint"
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
        self.frames.clear()

    # -- asking ----------------------------------------------------------------------------------

    async def ask(
        self, command: str, arguments: JsonObject | None = None, taking: Taking | None = None
    ) -> JsonObject:
        """Ask the adapter. Raises DapRequestFailed and DapSessionEnded."""
        return await self.adapter.request(command, arguments, REQUEST_LIMIT_S, taking)

    async def send_breakpoints(self, path: str) -> None:
        """Tell the adapter of all breakpoints of a file, which replaces what it knew."""
        async with self._sending:
            sent = self.breakpoints.in_order(path)
            source: JsonObject = {"source": {"path": path}, "sourceModified": False}
            await self._send("setBreakpoints", source, sent, [one.wanted() for one in sent])

    async def send_others(self, command: str, table: dict[Any, OtherBreakpoint]) -> None:
        """Tell the adapter of all breakpoints on instructions, or on data."""
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

    async def stack(self, thread_id: int, levels: int) -> tuple[list[JsonObject], int]:
        """Give the top frames of a thread and how many there are in all."""
        known = self.frames.get(thread_id, [])
        stop = self.stop
        body: JsonObject = {}
        if len(known) < levels:
            body = await self.ask(
                "stackTrace", {"threadId": thread_id, "startFrame": 0, "levels": levels}
            )
            listed = body.get("stackFrames")
            frames = listed if isinstance(listed, list) else []
            known = [one for one in frames[:MAX_FRAMES] if isinstance(one, dict)]
            if self.stop is stop:  # else the program has gone on meanwhile
                self.frames[thread_id] = known
        total = body.get("totalFrames")
        if type(total) is not int or total < len(known):
            total = await self._count(thread_id, known, levels)
        return known[:levels], total

    async def _count(self, thread_id: int, known: list[JsonObject], levels: int) -> int:
        if len(known) < levels:
            return len(known)
        body = await self.ask("stackTrace", {"threadId": thread_id})
        listed = body.get("stackFrames")
        return max(len(listed) if isinstance(listed, list) else 0, len(known))

    async def frame(self, position: int) -> JsonObject:
        """Give the frame at a position of the current stack, 0 being the top.

        Raises:
            DapRequestFailed: there is no such frame.
        """
        stop = self.require_stopped()
        frames, _ = await self.stack(stop.thread_id, position + 1)
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
                thread = body.get("threadId")
                reason = body.get("reason")
                self.frames.clear()
                self.stop = Stop(
                    reason if isinstance(reason, str) else "unknown",
                    thread if type(thread) is int else 1,
                    body,
                )
                self.state = State.STOPPED
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
                self._hear_output(body)
            case "breakpoint":
                self.breakpoints.note_change(body)
            case "capabilities":
                more = body.get("capabilities")
                self.capabilities |= more if isinstance(more, dict) else {}
            case _:
                return
        self._news.set()

    def _over(self) -> None:
        if self.alive:
            self.state = State.EXITED
            self.stop = None
            self.frames.clear()

    def _hear_output(self, body: JsonObject) -> None:
        text = body.get("output")
        if isinstance(text, str) and body.get("category") not in ("telemetry", "important"):
            room = OUTPUT_LIMIT_CHARS - self._output_chars
            if room > 0:
                self._output.append(text[:room])
                self._output_chars += min(len(text), room)

    def take_output(self) -> str:
        """Give what the program printed since the last time."""
        text = "".join(self._output)
        self._output.clear()
        self._output_chars = 0
        return text

    def closed(self) -> None:
        """Hear that the adapter is gone without having been asked to go."""
        if self.state in (State.STARTING, State.EXITED):
            # Whoever opens it hears of it by himself; a program that ended by itself has a session
            # until somebody says otherwise.
            return
        if self.state is not State.ENDED:
            self._tasks.start(self.end(EndReason.CRASH), f"crash {self.id}")

    # -- ending ----------------------------------------------------------------------------------

    async def disconnect(self, *, terminate: bool) -> bool:
        """Say goodbye to the adapter and end it; says whether the program was ended too."""
        if self.backend is not None and self.backend.adapter.is_open:
            arguments: JsonObject = {}
            if self.supports("supportTerminateDebuggee") or self.attached or terminate:
                arguments["terminateDebuggee"] = terminate
            with contextlib.suppress(DapRequestFailed, DapSessionEnded):
                await self.backend.adapter.request("disconnect", arguments, DISCONNECT_S)
        kept = not terminate and (self.attached or self.supports("supportTerminateDebuggee"))
        if self.backend is not None:
            self.backend.spare_program = kept
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


__all__ = ["Backend", "DebugSession", "EndReason", "State", "Stop", "ended"]
