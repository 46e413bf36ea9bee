"""`Script`: one script, its caged worker, and one thing at a time asked of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import field
from enum import StrEnum
from typing import Final, Protocol

from kaged.base import Clock, JsonObject, JsonValue, KagedError, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.cage import Spawner
from kaged.kernel.lua_powers import LuaPowers
from kaged.lua.errors import ScriptDown
from kaged.lua.events import CONTEXT_EVENTS, EVENTS, REFUSED_EVENTS
from kaged.lua.folder import ScriptFile
from kaged.lua.keeping import MAX_NAME_BYTES, MAX_STORE_BYTES
from kaged.lua.launch import worker_request
from kaged.lua.limits import (
    MAX_PROVIDED_MODELS,
    MAX_PROVIDERS,
    MAX_TIMER_MS,
    MAX_TIMERS,
    MAX_TOOLS,
    MAX_WINDOW_TOKENS,
    MIN_WINDOW_TOKENS,
    ScriptLimits,
)
from kaged.lua.values import from_wire, shown, to_wire
from kaged.peer import Again, Connection, PeerProcess, RestartPolicy
from kaged.sessions.entry import EntryDraft
from kaged.sessions.queued_requests import QueuedMessage
from kaged.wire.correlator import Ignored
from kaged.wire.errors import RpcError
from kaged.wire.messages import MessageId, Notification, Refused, Request, Response

API_VERSION: Final = 2
ANSWER_LIMIT_S: Final = 24 * 3600.0  # the wall below ends a worker long before

_log = get_logger("kaged.lua")


class ScriptState(StrEnum):
    """Where a script stands."""

    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed"  # its own error at load; it stays so until it is loaded again
    DOWN = "down"  # its worker ended; it is started again, or the tries were given up
    STOPPED = "stopped"


@dataclass(slots=True)
class Registrations:
    """What a script has registered, as its worker told last."""

    events: frozenset[str] = frozenset()
    commands: tuple[JsonObject, ...] = ()
    tools: tuple[JsonValue, ...] = ()
    providers: tuple[JsonValue, ...] = ()


@dataclass(slots=True, eq=False)
class WorkerConnection:
    """One conversation with one worker: the identity that every call is held against.

    `requested` is what was asked for on this very line. `move` and `branch` are the slots of what
    the script wants of the session, taken up when it has returned. `focus` is the session that the
    running entry is about, None for the project's current one; `asked_in` is where it was when the
    script asked.
    """

    stem: str
    granted: LuaPowers
    requested: LuaPowers = frozenset()
    move: tuple[str, str | None] | None = None
    branch: tuple[str | None] | None = None
    appends: list[EntryDraft] = field(default_factory=list["EntryDraft"])
    says: list[QueuedMessage] = field(default_factory=list["QueuedMessage"])
    compacts: tuple[str | None] | None = None
    focus: str | None = None
    asked_in: str | None = None

    @property
    def asks(self) -> bool:
        """Whether the script wants something of its session."""
        return (
            self.move is not None
            or self.branch is not None
            or self.compacts is not None
            or bool(self.appends or self.says)
        )


class ScriptHost(Protocol):
    """What a script needs from whoever runs it."""

    async def call(self, worker: WorkerConnection, method: str, params: JsonObject) -> JsonValue:
        """Do what a script asks for, if it may."""
        ...

    def told(self, worker: WorkerConnection, method: str, params: JsonObject) -> None:
        """Called for each notification of a script."""
        ...

    async def returned(self, worker: WorkerConnection) -> None:
        """Take up what the script asked for, now that it has returned."""
        ...

    def registered(self, script: Script) -> None:
        """Called when a script has told anew what it registers."""
        ...

    def ended(self, script: Script, reason: str) -> None:
        """Called when a script's worker ended unasked; its pending requests are void."""
        ...


@dataclass(frozen=True, slots=True)
class ScriptParts:
    """What every script of a runtime shares."""

    spawner: Spawner
    clock: Clock
    limits: ScriptLimits
    host: ScriptHost
    host_version: str
    builtin: frozenset[str] = frozenset()
    strict_context: bool = False
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    python: str | None = None


class Script:
    """One script. `start` loads it; `ask` runs one entry; a dead worker is started again."""

    def __init__(
        self, file: ScriptFile, granted: LuaPowers, config: JsonObject, parts: ScriptParts
    ) -> None:
        self.file = file
        self.stem = file.stem
        self.granted = granted
        self.state = ScriptState.STARTING
        self.error = ""
        self.registered = Registrations()
        self.last_events: frozenset[str] = frozenset()
        """What it listened to before its worker ended."""
        self.restarts = 0
        self._config = config
        self._parts = parts
        self._worker: WorkerConnection | None = None
        self._peer: PeerProcess | None = None
        self._lane = asyncio.Lock()
        self._compute_timer = _ComputeTimer(parts.limits.compute_s, self._out_of_time)
        self._policy = RestartPolicy()
        self._tasks = Tasks(f"lua {file.stem}")
        self._stopping = False
        self._killed_for = ""

    @property
    def worker(self) -> WorkerConnection | None:
        """The conversation in force."""
        return self._worker

    @property
    def pid(self) -> int | None:
        """The worker's process id, while there is one."""
        return self._peer.process.pid if self._peer is not None else None

    @property
    def active(self) -> LuaPowers:
        """What it may really do now."""
        worker = self._worker
        return frozenset() if worker is None else worker.granted & worker.requested

    @property
    def refused(self) -> LuaPowers:
        """What it asked for and was not granted."""
        worker = self._worker
        return frozenset() if worker is None else worker.requested - worker.granted

    async def start(self) -> None:
        """Start a worker and load the script in it. Never raises: `state` and `error` tell."""
        self.state, self.error = ScriptState.STARTING, ""
        self._killed_for = ""
        try:
            await self._open()
            answer = await self._exchange("load", self._load_params())
        except KagedError as error:
            await self._close()
            self._down(self._killed_for or error.message)
            return
        if answer.get("ok") is not True:
            self.state, self.error = ScriptState.FAILED, shown(str(answer.get("error")))
            await self._close()
            return
        self.state = ScriptState.RUNNING
        self._policy.running(self._parts.clock.monotonic_s())
        await self._settle()

    async def ask(self, method: str, params: JsonObject, *, focus: str | None = None) -> JsonObject:
        """Run one entry, after those asked before, about one session. Raises ScriptDown.

        When it returns, moves that the script asked for have been passed on.
        """
        if self.state is not ScriptState.RUNNING:
            raise ScriptDown(
                f"The script {self.stem} is {self.state}.", fix="`kaged lua list` shows why."
            )
        try:
            answer = await self._exchange(method, params, focus)
        except KagedError as error:
            reason = self._killed_for or error.message
            raise ScriptDown(f"The script {self.stem} failed: {reason}.") from error
        await self._settle()
        return answer

    async def stop(self) -> None:
        """End the worker for good."""
        self._stopping = True
        await self._tasks.close()
        await self._close()
        self.state = ScriptState.STOPPED

    # -- own -----------------------------------------------------------------------------------

    async def _open(self) -> None:
        worker = WorkerConnection(self.stem, self.granted)
        owner = _WorkerOwner(self, worker, self._parts.host, self._compute_timer)
        connection = Connection(owner, name=f"script {self.stem}", clock=self._parts.clock)
        request = worker_request(self.stem, self._parts.limits, python=self._parts.python)
        self._worker = worker
        async with asyncio.timeout(self._parts.limits.start_s):
            self._peer = await PeerProcess.start(
                self._parts.spawner, request, connection, owner.printed
            )

    def _load_params(self) -> JsonObject:
        strict = self._parts.strict_context and "context" not in {str(one) for one in self.granted}
        return {
            "stem": self.stem,
            "source": self.file.source,
            "instructions": self._parts.limits.instructions,
            "config": self._config,
            "events": {name: str(kind) for name, (kind, _) in EVENTS.items()},
            "refused": dict(REFUSED_EVENTS),
            "withheld": dict.fromkeys(sorted(CONTEXT_EVENTS), True) if strict else {},
            "builtin": dict.fromkeys(sorted(self._parts.builtin), True),
            "api_version": API_VERSION,
            "host_version": self._parts.host_version,
            "max_tools": MAX_TOOLS,
            "max_providers": MAX_PROVIDERS,
            "max_models": MAX_PROVIDED_MODELS,
            "min_window": MIN_WINDOW_TOKENS,
            "max_window": MAX_WINDOW_TOKENS,
            "max_timers": MAX_TIMERS,
            "max_timer_ms": MAX_TIMER_MS,
            "store_bytes": MAX_STORE_BYTES,
            "store_name_bytes": MAX_NAME_BYTES,
        }

    async def _exchange(
        self, method: str, params: JsonObject, focus: str | None = None
    ) -> JsonObject:
        async with self._lane:
            peer = self._peer
            if peer is None:
                raise ScriptDown("it is not running")
            wire = to_wire(params)
            assert isinstance(wire, dict)
            if self._worker is not None:
                self._worker.focus = focus
            self._compute_timer.enter()
            try:
                answer = from_wire(await peer.connection.request(method, wire, ANSWER_LIMIT_S))
            except RpcError as error:
                # The worker is alive and says that it cannot: it has run out of memory, mostly.
                raise ScriptDown(f"it could not answer: {shown(error.message)}") from error
            finally:
                self._compute_timer.leave()
        if not isinstance(answer, dict):
            raise ScriptDown("its worker sent an invalid message")
        told = answer.get("registrations")
        if isinstance(told, dict):
            self.registered = _registrations(told)
            self._parts.host.registered(self)
        return answer

    async def _settle(self) -> None:
        if self._worker is not None:
            await self._parts.host.returned(self._worker)

    def _out_of_time(self) -> None:
        self._killed_for = "it exceeded its time and was ended"
        if self._peer is not None:
            self._peer.process.kill()

    async def _close(self) -> None:
        peer, self._peer = self._peer, None
        self._worker = None
        self.last_events = self.registered.events or self.last_events
        self.registered = Registrations()
        if peer is not None:
            await peer.close()

    def worker_ended(self, worker: WorkerConnection, why: str) -> None:
        """Called by the connection when its worker has ended."""
        if worker is not self._worker or self._stopping or self.state is ScriptState.STARTING:
            return
        self.state = ScriptState.DOWN
        self._tasks.start(self._again(self._killed_for or why), "restart")

    async def _again(self, why: str) -> None:
        peer = self._peer
        await self._close()
        if peer is not None and peer.process.report is not None and not self._killed_for:
            why = peer.process.report.detail
        self._down(why)

    def _down(self, why: str) -> None:
        self.state, self.error = ScriptState.DOWN, shown(why)
        self._parts.host.ended(self, self.error)
        step = self._policy.failed(self._parts.clock.monotonic_s())
        if isinstance(step, Again) and not self._stopping:
            self._tasks.start(self._restart(step.delay_s), "wait")

    async def _restart(self, delay_s: float) -> None:
        await self._parts.sleep(delay_s)
        self.restarts += 1
        await self.start()


class _ComputeTimer:
    """Counts the time an entry computes, without the time it waits for the host."""

    def __init__(self, limit_s: float, out: Callable[[], None]) -> None:
        self._limit_s = limit_s
        self._out = out
        self._left_s = limit_s
        self._since_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._inside = False
        self._calls = 0

    def enter(self) -> None:
        """Begin an entry."""
        self._inside, self._left_s = True, self._limit_s
        self._go()

    def leave(self) -> None:
        """End an entry."""
        self._inside = False
        self._stop()

    def called(self) -> None:
        """Stop counting: the worker waits for us."""
        self._calls += 1
        self._stop()

    def answered(self) -> None:
        """Go on counting."""
        self._calls -= 1
        self._go()

    def _go(self) -> None:
        if self._inside and self._calls == 0 and self._timer is None:
            loop = asyncio.get_running_loop()
            self._since_s = loop.time()
            self._timer = loop.call_later(max(0.0, self._left_s), self._expired)

    def _stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._left_s -= asyncio.get_running_loop().time() - self._since_s

    def _expired(self) -> None:
        self._timer = None
        if self._inside:
            self._out()


class _WorkerOwner:
    """Hears a worker and passes on what it asks, with the line it came on."""

    def __init__(
        self, script: Script, worker: WorkerConnection, host: ScriptHost, timer: _ComputeTimer
    ) -> None:
        self._script = script
        self._worker = worker
        self._host = host
        self._compute_timer = timer

    async def answer(self, request: Request) -> JsonValue:
        try:
            params = from_wire(request.params)
            found = await self._host.call(
                self._worker, request.method, params if isinstance(params, dict) else {}
            )
            return to_wire(found)
        finally:
            self._compute_timer.answered()

    def asked(self, request: Request) -> None:
        self._compute_timer.called()

    def notified(self, notification: Notification) -> None:
        params = from_wire(notification.params)
        self._host.told(
            self._worker, notification.method, params if isinstance(params, dict) else {}
        )

    def printed(self, line: str) -> None:
        _log.info("lua.worker_output", script=self._worker.stem, line=line)

    def refused(self, refused: Refused) -> None:
        _log.warning("lua.worker_message_invalid", script=self._worker.stem)

    def ignored(self, response: Response, why: Ignored) -> None:
        """Called when an answer matches no open request."""

    def out_of_step(self, message_id: MessageId) -> None:
        """Called for request ids out of order; nothing depends on them."""

    def broke(self, error: KagedError) -> None:
        self._script.worker_ended(self._worker, error.message)

    def closed(self) -> None:
        self._script.worker_ended(self._worker, "its worker ended")


def _registrations(told: JsonObject) -> Registrations:
    def members(name: str) -> list[JsonValue]:
        found = told.get(name)
        return found if isinstance(found, list) else []

    return Registrations(
        events=frozenset(
            one for one in members("events") if isinstance(one, str) and one in EVENTS
        ),
        commands=tuple(one for one in members("commands") if isinstance(one, dict)),
        tools=tuple(members("tools")),
        providers=tuple(members("providers")),
    )
