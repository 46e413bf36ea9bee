"""`ProjectReadiness`: a project is opening until everything that guards it stands.

Scripts, policies, plugins and the approvals of outside tools are loaded while the daemon already
answers. Each is a `Guard`, known from construction on, so that one which is still missing counts.
Whatever could be guarded waits in `ready`: runs, moves, calls. Who waits too long is refused.

Guards stay in force while they are exchanged: the new ones replace the old ones in one step.
Quotas and trust need no guard; they are read before the first request is let in.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Final, Literal

from kaged.base import KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.base.tasks import report_failure

OPENING_WAIT_S: Final = 30.0

Ready = Callable[[str | None], Awaitable[None]]
"""Waits until a project is guarded; with None only for what guards all of them."""

_log = get_logger("kaged.projects")


@dataclass(frozen=True, slots=True)
class ReadinessView:
    """How far a project is, and the guards that do not stand."""

    state: Literal["opening", "open", "failed"]
    missing: tuple[str, ...] = ()


class Guard:
    """One thing that guards projects: all of them at once, or each by itself."""

    def __init__(
        self,
        name: str,
        *,
        each_project: bool = False,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.name = name
        self.each_project = each_project
        self._changed = changed
        self._standing: set[str | None] = set()
        self._failed: dict[str | None, str] = {}

    def stand(self, project_id: str | None = None) -> None:
        """Take note that it is in force, for a project or for all."""
        self._standing.add(project_id)
        self._failed.pop(project_id, None)
        self._changed()

    def fail(self, reason: str, project_id: str | None = None) -> None:
        """Take note that it will not come into force; one that is in force stays so."""
        if project_id not in self._standing:
            self._failed[project_id] = reason
            self._changed()

    def forget(self, project_id: str) -> None:
        """Start anew with a project that is gone."""
        self._standing.discard(project_id)
        self._failed.pop(project_id, None)

    def stands(self, project_id: str | None) -> bool:
        """Return whether it is in force for a project."""
        if not self.each_project:
            return None in self._standing
        return project_id is None or project_id in self._standing

    def failure(self, project_id: str | None) -> str | None:
        """Return why it will not come into force; None when it may still."""
        return self._failed.get(project_id if self.each_project else None)

    @contextmanager
    def rising(self, project_id: str | None = None) -> Generator[None]:
        """Come into force when the block ends well, and fail when it raises."""
        try:
            yield
        except Exception as error:
            self.fail(f"{self.name}: {error}", project_id)
            raise
        self.stand(project_id)


class ProjectReadiness:
    """The guards of all projects, and the one place where requests wait for them."""

    def __init__(self, wait_s: Callable[[], float] = lambda: OPENING_WAIT_S) -> None:
        self._wait_s = wait_s
        self._guards: list[Guard] = []
        self._projects: set[str] = set()
        self._change = asyncio.Event()

    def guard(self, name: str, *, each_project: bool = False) -> Guard:
        """Return a new guard; from now on projects are opening until it stands."""
        made = Guard(name, each_project=each_project, changed=self._changed)
        self._guards.append(made)
        return made

    # -- projects ------------------------------------------------------------------------------

    def project_loaded(self, project_id: str) -> None:
        """Take in a project; one that is loaded already keeps its guards."""
        self._projects.add(project_id)

    def project_unloaded(self, project_id: str) -> None:
        """Forget a project: loaded again, it has to be guarded again."""
        self._projects.discard(project_id)
        for guard in self._guards:
            guard.forget(project_id)
        self._changed()

    # -- what everybody asks -------------------------------------------------------------------

    async def ready(self, project_id: str | None) -> None:
        """Wait until everything that guards a project stands; None is for no project at all.

        Raises:
            ProjectOpening: a guard is still missing after the time that requests wait, or failed.
            KagedError: `project_not_found`; nothing guards a project that is not loaded.
        """
        if not self._missing(project_id):
            return
        try:
            async with asyncio.timeout(self._wait_s()):
                while self._missing(project_id) and self._failed(project_id) is None:
                    await self._change.wait()
        except TimeoutError:
            pass
        missing = self._missing(project_id)
        if missing:
            reason = self._failed(project_id)
            names = ", ".join(missing)
            _log.warning("project.not_open", project=project_id, missing=names, reason=reason)
            raise ProjectOpening(
                f"{'The project' if project_id else 'The daemon'} is still opening, and nothing "
                f"passes unguarded: {reason or f'{names} not loaded yet'}.",
                fix="Try again in a moment; `kaged project list` shows what is missing, and the "
                "daemon's log says why.",
                missing=list(missing),
            )

    def view(self, project_id: str) -> ReadinessView:
        """Return how far a project is; nothing can guard one whose files cannot be used."""
        if project_id not in self._projects:
            return ReadinessView("failed", ("project files",))
        missing = self._missing(project_id)
        if not missing:
            return ReadinessView("open")
        return ReadinessView("opening" if self._failed(project_id) is None else "failed", missing)

    def fail(self, task: str, error: BaseException) -> None:
        """Refuse at once what waits for guards that now never come; those in force stay so."""
        report_failure(task, error)
        for guard in self._guards:
            for project_id in self._projects if guard.each_project else (None,):
                guard.fail(f"{type(error).__name__}: {error}", project_id)

    # -- own -----------------------------------------------------------------------------------

    def _missing(self, project_id: str | None) -> tuple[str, ...]:
        if project_id is not None and project_id not in self._projects:
            raise KagedError(
                f"No usable project {project_id} is loaded.",
                code="project_not_found",
                fix="`kaged project list` shows the loaded ones.",
            )
        return tuple(guard.name for guard in self._guards if not guard.stands(project_id))

    def _failed(self, project_id: str | None) -> str | None:
        reasons = (guard.failure(project_id) for guard in self._guards)
        return next((reason for reason in reasons if reason is not None), None)

    def _changed(self) -> None:
        waiting, self._change = self._change, asyncio.Event()
        waiting.set()


class ProjectOpening(KagedError):
    """What guards a project does not stand, so nothing that it could refuse is let through."""

    code = "project_opening"
