"""`HttpServices`: what the routes need from the rest of the daemon, handed in by `app`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from starlette.requests import HTTPConnection

from kaged.audit import AuditFilter, AuditLog, VerifyReport
from kaged.base import Clock, Ids, KagedError
from kaged.serve.http.access import AccessRules, Caller, Credentials
from kaged.serve.http.credentials import LaunchTokens
from kaged.serve.http.hub import EventHub
from kaged.serve.http.metrics import Metrics
from kaged.serve.http.ports import (
    AccountsPort,
    Asker,
    CheckRow,
    CodePort,
    ModelPort,
    PluginDesk,
    ProjectDesk,
    ScriptPort,
    ToolDeskPort,
    UndoPort,
)
from kaged.store import Store

if TYPE_CHECKING:
    from kaged.serve.http.models import StatusOut
    from kaged.sessions.room import SessionRoom
    from kaged.toolbox.project import ProjectWork


class StillOpening(KagedError):
    """What was asked for belongs to a part of the daemon that is not open yet, or never opened."""

    code: ClassVar[str] = "daemon_opening"


@dataclass(frozen=True, slots=True)
class Rooms:
    """The parts of the daemon that open behind the doors: projects, plugins, tools and the rest."""

    projects: ProjectDesk
    status: Callable[[], StatusOut]
    doctor: Callable[[], Awaitable[Sequence[CheckRow]]]
    plugins: PluginDesk | None = None
    tools: ToolDeskPort | None = None
    work: ProjectWork | None = None
    code: CodePort | None = None
    undo: UndoPort | None = None
    models: ModelPort | None = None
    sessions: SessionRoom | None = None
    lua: ScriptPort | None = None
    accounts: AccountsPort | None = None


class Doorway:
    """Lets requests wait for the rooms. They open once, or say why they never will."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._rooms: Rooms | None = None
        self._failure: KagedError | None = None

    def open(self, rooms: Rooms) -> None:
        """Allow everybody."""
        self._rooms = rooms
        self._changed.set()

    def fail(self, error: KagedError) -> None:
        """Fail everybody who waits, now and later: the daemon did not start."""
        self._failure = error
        self._changed.set()

    @property
    def is_open(self) -> bool:
        """Whether the rooms are open."""
        return self._rooms is not None

    async def wait(self) -> None:
        """Wait until the rooms are open. Raises StillOpening when they never will be."""
        await self._changed.wait()
        if self._failure is not None:
            raise StillOpening(
                f"This part of the daemon did not open: {self._failure.message}",
                fix=self._failure.fix or "See the daemon's log.",
            )

    def rooms(self) -> Rooms:
        """Return the rooms. Raises StillOpening before they are open."""
        if self._rooms is None:
            raise StillOpening("The daemon is still opening.", fix="Try again in a moment.")
        return self._rooms


@dataclass(frozen=True, slots=True)
class HttpServices:
    """Everything behind the routes. Built once by the composition root.

    What is reached through `doorway` is there once a request has waited for it, which the layer
    `Waiting` sees to.
    """

    clock: Clock
    ids: Ids
    rules: Callable[[], AccessRules]
    credentials: Credentials
    launch: LaunchTokens
    hub: EventHub
    metrics: Metrics
    audit: AuditLog
    store: Store
    verify_audit: Callable[[], Awaitable[VerifyReport]]
    export_audit: Callable[[AuditFilter], AsyncIterator[bytes]]
    stopping: Callable[[], bool]
    base_url: Callable[[], str | None]
    doorway: Doorway

    def health(self) -> tuple[int, Literal["ok", "degraded", "stopping"]]:
        """Return whether the daemon can do its work: an HTTP status, and the word for it."""
        if self.stopping():
            return 503, "stopping"
        if not self.audit.health.ok or self.store.status.last_error is not None:
            return 503, "degraded"
        return 200, "ok"

    @property
    def projects(self) -> ProjectDesk:
        """The loaded projects."""
        return self.doorway.rooms().projects

    def status(self) -> StatusOut:
        """Describe the daemon as it is now."""
        return self.doorway.rooms().status()

    async def doctor(self) -> Sequence[CheckRow]:
        """Look at everything that protects the user."""
        return await self.doorway.rooms().doctor()

    @property
    def plugins(self) -> PluginDesk | None:
        """The plugin host."""
        return self.doorway.rooms().plugins

    @property
    def tools(self) -> ToolDeskPort | None:
        """The tool desk."""
        return self.doorway.rooms().tools

    @property
    def work(self) -> ProjectWork | None:
        """Issues, todos, workflows and questions."""
        return self.doorway.rooms().work

    @property
    def code(self) -> CodePort | None:
        """Language servers."""
        return self.doorway.rooms().code

    @property
    def undo(self) -> UndoPort | None:
        """What tools did to files, and how to take it back."""
        return self.doorway.rooms().undo

    @property
    def lua(self) -> ScriptPort | None:
        """Lua scripts."""
        return self.doorway.rooms().lua

    @property
    def models(self) -> ModelPort | None:
        """The models behind aliases."""
        return self.doorway.rooms().models

    @property
    def sessions(self) -> SessionRoom | None:
        """Sessions, their entries and their runs."""
        return self.doorway.rooms().sessions


def accounts_of(services: HttpServices) -> AccountsPort | None:
    """Return the desk of people's accounts, if the daemon has one."""
    return services.doorway.rooms().accounts


async def services_of(connection: HTTPConnection) -> HttpServices:
    """Return the services of the application that serves this request."""
    services: object = connection.app.state.services
    assert isinstance(services, HttpServices)
    return services


async def asker_of(connection: HTTPConnection) -> Asker:
    """Return who asks, as the gatekeeper found out."""
    caller: object = connection.state.caller
    request_id: object = connection.state.request_id
    assert isinstance(caller, Caller)
    assert isinstance(request_id, str)
    return Asker(caller, request_id)


__all__ = [
    "Doorway",
    "HttpServices",
    "Rooms",
    "StillOpening",
    "accounts_of",
    "asker_of",
    "services_of",
]
