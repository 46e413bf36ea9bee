"""What the routes of sessions share: the services behind them, and sessions as answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from fastapi import Depends, Path

from kaged.base import KagedError, iso_utc
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import AccessAction, may
from kaged.serve.http.routes.dependencies import SESSION_ID
from kaged.serve.http.routes.work import InProject, ProjectRequest
from kaged.serve.http.services import HttpServices
from kaged.serve.http.session_models import SessionRowOut
from kaged.sessions.driver import SessionDriver
from kaged.store.session_rows import SessionRecord
from kaged.store.work_errors import SessionNotFound

UNKNOWN_OPERATOR = "operator"
CURRENT = "current"  # no id begins so: they have no U


class SessionRequest(ProjectRequest):
    """One request on the sessions of one loaded project."""

    def __init__(self, services: HttpServices, who: Actor, project_id: str) -> None:
        super().__init__(services, who, project_id)
        self.sessions = services.subsystems.sessions

    @property
    def operator_id(self) -> str:
        """Who asks; in insecure mode, which authenticates nobody, just an operator."""
        return self.who.person_id or UNKNOWN_OPERATOR

    @property
    def driver(self) -> SessionDriver:
        """What starts and stops runs."""
        assert self.sessions.driver is not None, "every daemon has one once its routes are open"
        return self.sessions.driver

    async def session(self, which: str, action: AccessAction = AccessAction.SEE) -> SessionRecord:
        """Return the session that the path names; `current` is the project's current one.

        Raises:
            SessionNotFound, KagedError: `session_ambiguous`; there is none of that name that they
                may see, or more than one.
            KagedError: `not_yours`; they may see it, and not do this with it.
        """
        if which == CURRENT:
            current = await self.current()
            if current is None:
                raise await self._no_current()
            which = current
        found = await self.sessions.service.resolve(self.project_id, which, self.who)
        if not may(self.who, action, found.ownership):
            raise KagedError(
                "This session belongs to somebody else in this chat.",
                code="not_yours",
                fix="ask the person who began it",
            )
        return found

    async def _no_current(self) -> SessionNotFound:
        # `kaged run` begins sessions too, but leaves the project's current one as it is.
        found, _ = await self.sessions.service.list(self.project_id, limit=1, actor=self.who)
        fix = "begin one with `kaged chat`"
        if found:
            fix = (
                f"run `kaged session switch {found[0].id}` to make the one used last the current "
                "one, or name a session of `kaged session list`"
            )
        return SessionNotFound("This project has no current session.", fix=fix)

    async def current(self) -> str | None:
        """Return the project's current session; people have none, it is the operator's."""
        if self.who.is_person:
            return None
        return await self.sessions.service.current(self.project_id)

    async def shown(self, session: SessionRecord) -> SessionRowOut:
        """Return one session as answers show it."""
        return (await self.all_shown([session]))[0]

    async def all_shown(self, sessions: Sequence[SessionRecord]) -> list[SessionRowOut]:
        """Return several of them."""
        current = await self.current()
        return [
            SessionRowOut.of(
                session,
                entries=session.entry_count,
                issue_bound=session.bound_issue is not None,
                current=session.id == current,
                created_at=iso_utc(session.created_at_ms),
                updated_at=iso_utc(session.updated_at_ms),
            )
            for session in sessions
        ]


async def _sessions(context: InProject) -> SessionRequest:
    return SessionRequest(context.services, context.who, context.project_id)


Sessions = Annotated[SessionRequest, Depends(_sessions)]
Which = Annotated[
    str, Path(pattern=SESSION_ID, description="Its id, a unique beginning of it, or `current`.")
]
