"""`HttpServices`: what the routes need from the rest of the daemon, handed in by `app`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import TYPE_CHECKING, Literal

from starlette.requests import HTTPConnection

from kaged.audit import AuditFilter, AuditLog, VerifyReport
from kaged.base import Clock, Ids, KagedError
from kaged.base.checks import CheckRow
from kaged.base.lazy_dataclass import dataclass
from kaged.events import EventHub
from kaged.kernel.identity import Actor
from kaged.serve.http.access import AccessRules, Credentials
from kaged.serve.http.actor_renewal import ActorRenewal
from kaged.serve.http.credentials import LaunchTokens
from kaged.serve.http.invitations import Invitations
from kaged.serve.http.metrics import Metrics
from kaged.serve.http.service_accounts import ServiceAccounts
from kaged.serve.signin.sign_in import SignIn
from kaged.store import Store

if TYPE_CHECKING:
    from kaged.credentials.credential_service import CredentialService
    from kaged.inbox import Inbox
    from kaged.lua.script_service import ScriptService
    from kaged.models.catalogue import ModelCatalogue
    from kaged.pipeline.trace_log import TraceLog
    from kaged.plugins.plugin_service import PluginService
    from kaged.projects.service import ProjectService
    from kaged.serve.http.models import StatusOut
    from kaged.services.account_service import AccountService
    from kaged.sessions.agent_tools import AgentToolService
    from kaged.sessions.session_services import SessionServices
    from kaged.skills.skill_service import SkillService
    from kaged.toolbox.project import ProjectWork
    from kaged.tools.access_requests import AccessRequests
    from kaged.toolset.language_services import LanguageServices
    from kaged.workspace.undo_service import UndoService


class DaemonStarting(KagedError):
    """What was asked for belongs to a part of the daemon that is not open yet, or never opened."""

    code = "daemon_opening"


@dataclass(frozen=True, slots=True)
class Subsystems:
    """What starts while the daemon already answers: projects, plugins, tools and the rest."""

    projects: ProjectService
    status: Callable[[], StatusOut]
    doctor: Callable[[], Awaitable[Sequence[CheckRow]]]
    plugins: PluginService
    tools: AgentToolService
    work: ProjectWork
    code: LanguageServices
    undo: UndoService
    models: ModelCatalogue
    sessions: SessionServices
    lua: ScriptService
    accounts: AccountService
    credentials: CredentialService
    skills: SkillService
    inbox: Inbox
    traces: TraceLog
    access: AccessRequests


class ReadinessGate:
    """Lets requests wait for the subsystems. They start once, or say why they never will."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()
        self._subsystems: Subsystems | None = None
        self._failure: KagedError | None = None

    def open(self, subsystems: Subsystems) -> None:
        """Allow everybody."""
        self._subsystems = subsystems
        self._changed.set()

    def fail(self, error: KagedError) -> None:
        """Fail everybody who waits, now and later: the daemon did not start."""
        self._failure = error
        self._changed.set()

    @property
    def is_open(self) -> bool:
        """Whether the subsystems are open."""
        return self._subsystems is not None

    async def wait(self) -> None:
        """Wait until the subsystems are open. Raises DaemonStarting when they never will be."""
        await self._changed.wait()
        if self._failure is not None:
            raise DaemonStarting(
                f"This part of the daemon did not start: {self._failure.message}",
                fix=self._failure.fix or "See the daemon's log.",
            )

    def subsystems(self) -> Subsystems:
        """Return the subsystems. Raises DaemonStarting before they are open."""
        if self._subsystems is None:
            raise DaemonStarting("The daemon is still starting.", fix="Try again in a moment.")
        return self._subsystems


@dataclass(frozen=True, slots=True)
class HttpServices:
    """Everything behind the routes. Built once by the composition root.

    What is reached through `readiness` is there once a request has waited for it, which the layer
    `Waiting` sees to.
    """

    clock: Clock
    ids: Ids
    rules: Callable[[], AccessRules]
    credentials: Credentials
    service_accounts: ServiceAccounts
    invitations: Invitations
    sign_in: SignIn
    launch: LaunchTokens
    hub: EventHub
    metrics: Metrics
    audit: AuditLog
    store: Store
    verify_audit: Callable[[], Awaitable[VerifyReport]]
    export_audit: Callable[[AuditFilter], AsyncIterator[bytes]]
    stopping: Callable[[], bool]
    base_url: Callable[[], str | None]
    readiness: ReadinessGate

    def health(self) -> tuple[int, Literal["ok", "degraded", "stopping"]]:
        """Return whether the daemon can do its work: an HTTP status, and the word for it."""
        if self.stopping():
            return 503, "stopping"
        if not self.audit.health.ok or self.store.status.last_error is not None:
            return 503, "degraded"
        return 200, "ok"

    async def project_ids(self, words: Collection[str]) -> frozenset[str]:
        """Return the loaded projects that are named by id or slug, once projects are loaded."""
        await self.readiness.wait()
        return self.subsystems.projects.ids_of(words)

    @property
    def renew_actor(self) -> ActorRenewal:
        """Who somebody is by now, for whom work goes on."""
        return ActorRenewal(
            self.rules, self.service_accounts, self.invitations, self.sign_in, self.project_ids
        )

    @property
    def subsystems(self) -> Subsystems:
        """What starts while the daemon already answers. Raises DaemonStarting before that."""
        return self.readiness.subsystems()


async def services_of(connection: HTTPConnection) -> HttpServices:
    """Return the services of the application that serves this request."""
    services: object = connection.app.state.services
    assert isinstance(services, HttpServices)
    return services


async def actor_of(connection: HTTPConnection) -> Actor:
    """Return who asks, as the access layer found out."""
    actor: object = connection.state.actor
    assert isinstance(actor, Actor)
    return actor
