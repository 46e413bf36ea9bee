"""`HttpServices`: what the routes need from the rest of the daemon, handed in by `app`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from starlette.requests import HTTPConnection

from kaged.audit import AuditFilter, AuditLog, VerifyReport
from kaged.base import Clock, Ids, JsonObject, JsonValue
from kaged.config.problems import Problem
from kaged.serve.http.access import AccessRules, Caller, Credentials
from kaged.serve.http.credentials import LaunchTokens
from kaged.serve.http.hub import EventHub
from kaged.serve.http.metrics import Metrics
from kaged.serve.http.models import StatusOut
from kaged.store import Store


@dataclass(frozen=True, slots=True)
class Asker:
    """On whose behalf something is done, and under which request id."""

    caller: Caller
    request_id: str


class CheckStatus(StrEnum):
    """How a check came out. `warn` works but protects less; `fail` does not work."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class CheckRow:
    """One thing that `kaged doctor` looked at: what it is for, what was found, what to do."""

    id: str
    status: CheckStatus
    what: str
    cause: str
    fix: str = ""


@dataclass(frozen=True, slots=True)
class ProjectView:
    """One loaded project as others see it. `tree` is None when its files have errors."""

    id: str
    slug: str
    name: str
    root: str
    trusted: bool
    state: Literal["loaded", "failed"]
    loaded_at: str
    agents: int
    problems: tuple[Problem, ...]
    tree: JsonObject | None


class ProjectDesk(Protocol):
    """The projects that the daemon holds. Each change is recorded on behalf of `who`."""

    async def load(self, root: str, who: Asker) -> ProjectView:
        """Read a project and keep it."""
        ...

    async def reload(self, project_id: str, who: Asker) -> ProjectView:
        """Read a project's files again."""
        ...

    async def get(self, project_id: str) -> ProjectView:
        """Give one project."""
        ...

    async def page(
        self, cursor: str | None, limit: int
    ) -> tuple[Sequence[ProjectView], str | None]:
        """Give a page of projects and the cursor of the next."""
        ...

    async def set_trusted(self, project_id: str, trusted: bool, who: Asker) -> ProjectView:
        """Trust a project, or stop."""
        ...

    async def unload(self, project_id: str, who: Asker) -> None:
        """Let go of a project."""
        ...


class PluginDesk(Protocol):
    """The plugins of this daemon. Each change is recorded on behalf of `who`."""

    def list(self) -> Sequence[JsonObject]:
        """Describe every installed plugin, also those that are disabled for this run."""
        ...

    def get(self, name: str) -> JsonObject:
        """Describe one plugin. Raises PluginNotFound."""
        ...

    def logs(self, name: str) -> Sequence[str]:
        """Give the last lines of its standard error."""
        ...

    def knobs(self, name: str) -> JsonObject:
        """Give its knobs as the manifest declares them."""
        ...

    async def preview(self, path: str) -> JsonObject:
        """Give what the operator is shown before an install or upgrade."""
        ...

    async def install(self, path: str, digest: str, who: Asker) -> JsonObject:
        """Install or upgrade exactly the files whose digest the operator agreed to."""
        ...

    async def uninstall(self, name: str, *, force: bool, who: Asker) -> JsonObject:
        """Remove a plugin with its files, tables and entries."""
        ...

    async def enable(self, name: str, who: Asker) -> JsonObject:
        """Enable and start a plugin."""
        ...

    async def disable(self, name: str, who: Asker) -> JsonObject:
        """Stop and disable a plugin."""
        ...

    async def restart(self, name: str, who: Asker) -> JsonObject:
        """Stop and start a plugin."""
        ...

    async def call(self, name: str, method: str, params: JsonObject, who: Asker) -> JsonValue:
        """Call a method of a plugin as the daemon itself."""
        ...


@dataclass(frozen=True, slots=True)
class HttpServices:
    """Everything behind the routes. Built once by the composition root."""

    clock: Clock
    ids: Ids
    rules: Callable[[], AccessRules]
    credentials: Credentials
    launch: LaunchTokens
    hub: EventHub
    metrics: Metrics
    audit: AuditLog
    store: Store
    projects: ProjectDesk
    status: Callable[[], StatusOut]
    doctor: Callable[[], Awaitable[Sequence[CheckRow]]]
    verify_audit: Callable[[], Awaitable[VerifyReport]]
    export_audit: Callable[[AuditFilter], AsyncIterator[bytes]]
    stopping: Callable[[], bool]
    base_url: Callable[[], str | None]
    plugins: PluginDesk | None = None


async def services_of(connection: HTTPConnection) -> HttpServices:
    """Give the services of the application that serves this request."""
    services: object = connection.app.state.services
    assert isinstance(services, HttpServices)
    return services


async def asker_of(connection: HTTPConnection) -> Asker:
    """Give who asks, as the gatekeeper found out."""
    caller: object = connection.state.caller
    request_id: object = connection.state.request_id
    assert isinstance(caller, Caller)
    assert isinstance(request_id, str)
    return Asker(caller, request_id)


__all__ = [
    "Asker",
    "CheckRow",
    "CheckStatus",
    "HttpServices",
    "PluginDesk",
    "ProjectDesk",
    "ProjectView",
    "asker_of",
    "services_of",
]
