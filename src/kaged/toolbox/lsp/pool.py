"""`LspPool`: the language servers of one project, one per language, shared by all its agents."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, field
from enum import StrEnum
from typing import Final

from kaged.base import Clock, JsonObject, JsonValue, Tasks
from kaged.base.lazy_dataclass import dataclass
from kaged.cage import ExitReport, Spawner
from kaged.toolbox.lsp.errors import LspServerNotFound
from kaged.toolbox.lsp.languages import Languages, install_hint
from kaged.toolbox.lsp.server import REQUEST_LIMIT_S, LspServer
from kaged.tools.errors import ToolError

MAX_RESTARTS: Final = 3  # AT-LSP-23
IDLE_S: Final = 600.0  # AT-LSP-07
MAX_SESSIONS_KNOWN: Final = 1000


Emit = Callable[[str, JsonObject], None]


class LspServerState(StrEnum):
    """What a language's server is doing."""

    NOT_STARTED = "not_started"
    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"
    FAILED = "failed"


class ServerStopReason(StrEnum):
    """Why a server was stopped, as the audit log names it (AT-AUD-08)."""

    IDLE = "idle_timeout"
    PROJECT = "project_unload"
    DAEMON = "daemon_shutdown"
    RELOAD = "reload"


@dataclass(slots=True)
class _Slot:
    """One language: its server across all of that server's lives."""

    language: str
    command: tuple[str, ...]
    state: LspServerState = LspServerState.NOT_STARTED
    server: LspServer | None = None
    crashed: bool = False  # the next start is a restart
    restarts: int = 0
    restarts_by_session: dict[str, int] = field(default_factory=dict)
    starting: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False)
class LspPool:
    """Starts servers when they are needed, starts them again when they die, stops them unused."""

    root: str
    languages: Languages
    spawner: Spawner
    _: KW_ONLY
    clock: Clock
    emit: Emit
    environ: Mapping[str, str]
    idle_s: float = IDLE_S
    limit_s: float = REQUEST_LIMIT_S
    guard: Callable[[str, tuple[str, ...]], None] = lambda _language, _command: None
    """Called before each start with the language and its command; raises to refuse it."""

    def __post_init__(self) -> None:
        self._tasks = Tasks("language servers")
        commands = self.languages.commands
        self._slots = {name: _Slot(name, command) for name, command in commands.items()}
        self._closed = False

    def running(self, language: str) -> LspServer | None:
        """Return a language's server if it runs; never starts one."""
        slot = self._slots.get(language)
        server = None if slot is None else slot.server
        return server if server is not None and server.running else None

    def require(self, language: str) -> tuple[str, ...]:
        """Return the command of a language whose program is there, before anything is started.

        Raises LspServerNotFound when no server is configured, or its program is not installed.
        """
        slot = self._slots.get(language)
        if slot is None:
            raise LspServerNotFound.unconfigured(language)
        program = self._program(slot.command[0])
        if program is None:
            hint = install_hint(slot.command)
            raise LspServerNotFound(
                f"the language server for {language} is not installed: {slot.command[0]}",
                fix=hint,
                detail={"language": language, "command": list(slot.command), "install": hint},
            )
        return (program, *slot.command[1:])

    async def get(self, language: str, session_id: str) -> tuple[LspServer, bool]:
        """Return a language's server, started if need be, and whether this call started it.

        Raises:
            LspServerNotFound: as `require`.
            ToolError: `lsp_server_unavailable`; it cannot be started, or has died too often in
                this session.
            ToolError: `lsp_timeout`; it did not answer its first message.
        """
        command = self.require(language)
        slot = self._slots[language]
        async with slot.starting:
            if self._closed:
                raise ToolError("the project is being unloaded", code="lsp_server_unavailable")
            if slot.server is not None and slot.server.running:
                return slot.server, False
            self._count_restart(slot, session_id)
            return await self._start(slot, command), True

    async def stop_idle(self) -> None:
        """Stop the servers that nobody has asked anything for a while."""
        now_s = self.clock.monotonic_s()
        for slot in self._slots.values():
            server = slot.server
            if server is None or not server.running or server.busy:
                continue
            if now_s - server.used_s >= self.idle_s:
                await self._stop(slot, ServerStopReason.IDLE)

    async def reload(self, languages: tuple[str, ...], session_id: str) -> list[str]:
        """Stop servers, forget their failures and start them again; returns those that run."""
        for language in languages:
            slot = self._slots[language]
            async with slot.starting:
                await self._stop(slot, ServerStopReason.RELOAD)
                slot.restarts = 0
                slot.restarts_by_session.clear()
                slot.crashed = False
            await self.get(language, session_id)
        return list(languages)

    async def close(self, reason: ServerStopReason) -> None:
        """Stop every server; none can be started afterwards."""
        self._closed = True
        for slot in self._slots.values():
            async with slot.starting:
                await self._stop(slot, reason)
        await self._tasks.close()

    def known(self) -> tuple[str, ...]:
        """Return the languages that have a server configured, sorted."""
        return tuple(sorted(self._slots))

    def used(self) -> tuple[str, ...]:
        """Return the languages whose server was started at some time and not stopped since."""
        return tuple(
            sorted(
                name
                for name, slot in self._slots.items()
                if slot.state not in (LspServerState.NOT_STARTED, LspServerState.STOPPED)
            )
        )

    def status(self, language: str) -> JsonObject:
        """Describe one language's server."""
        slot = self._slots[language]
        server = slot.server if slot.server is not None and slot.server.running else None
        return {
            "language": language,
            "command": list(slot.command),
            "state": slot.state.value,
            "pid": None if server is None else server.pid,
            "restart_count": slot.restarts,
            "open_files": 0 if server is None else len(server.files),
            "idle_seconds": 0.0
            if server is None
            else round(self.clock.monotonic_s() - server.used_s, 3),
        }

    def installed(self, language: str) -> tuple[bool, str]:
        """Return whether a language's program is there, and how to get it."""
        slot = self._slots[language]
        return self._program(slot.command[0]) is not None, install_hint(slot.command)

    # -- own -----------------------------------------------------------------------------------

    def _count_restart(self, slot: _Slot, session_id: str) -> None:
        if not slot.crashed:
            return
        used = slot.restarts_by_session.get(session_id, 0)
        if used >= MAX_RESTARTS:
            raise ToolError(
                f"the {slot.language} language server has failed {used + 1} times and is not "
                "started again in this session",
                code="lsp_server_unavailable",
                fix="look at its output, then use the reload action",
                detail={"language": slot.language, "restart_count": slot.restarts},
            )
        if len(slot.restarts_by_session) >= MAX_SESSIONS_KNOWN:
            slot.restarts_by_session.pop(next(iter(slot.restarts_by_session)))
        slot.restarts_by_session[session_id] = used + 1
        slot.restarts += 1

    async def _start(self, slot: _Slot, command: tuple[str, ...]) -> LspServer:
        await asyncio.to_thread(self.guard, slot.language, command)
        slot.state = LspServerState.STARTING
        argv: list[JsonValue] = list(slot.command)
        self.emit("code.lsp.server_spawned", {"language": slot.language, "command": argv})
        try:
            server = await LspServer.start(
                self.spawner,
                slot.language,
                command,
                self.root,
                self.environ,
                clock=self.clock,
                on_end=lambda one, report: self._died(slot, one, report),
                limit_s=self.limit_s,
            )
        except BaseException:
            slot.state = LspServerState.FAILED
            slot.crashed = True
            raise
        slot.server = server
        slot.state = LspServerState.RUNNING
        self._tasks.start(server.watch(), f"watch {slot.language}")
        return server

    def _died(self, slot: _Slot, server: LspServer, report: ExitReport) -> None:
        slot.crashed = True
        if slot.server is server:
            slot.server = None  # a second reference to a dead server is how they are leaked
        slot.state = LspServerState.FAILED
        self.emit(
            "code.lsp.server_crashed",
            {
                "language": slot.language,
                "exit_code": report.exit_code,
                "restart_count": slot.restarts,
                "last_stderr": server.last_stderr(),
            },
        )

    async def _stop(self, slot: _Slot, reason: ServerStopReason) -> None:
        server, slot.server = slot.server, None
        if server is None or not server.running:
            return
        await server.stop()
        slot.state = LspServerState.STOPPED
        self.emit("code.lsp.server_stopped", {"language": slot.language, "reason": reason.value})

    def _program(self, name: str) -> str | None:
        if "/" in name:
            path = os.path.join(self.root, name)  # noqa: PTH118 - a text for the spawner
            return path if os.access(path, os.X_OK) else None
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))
