"""`ProjectService`: the projects that the daemon holds; load, reload, trust, unload, on record."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import structlog

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import JsonObject, JsonValue, KagedError, iso_utc
from kaged.config.agents import AgentTree, resolve_agents
from kaged.config.describe import describe
from kaged.config.problems import ConfigFileInvalid, Problem
from kaged.config.project import load_project
from kaged.config.settings import Settings
from kaged.kernel.identity import Actor
from kaged.store import ProjectRecord, Store, StoreError

MAX_PROJECTS = 200
MAX_RECORDED_PROBLEMS = 20

_log = structlog.get_logger("kaged.projects")


@dataclass(frozen=True, slots=True)
class ProjectView:
    """One loaded project as others see it. `tree` is None when its files have errors."""

    id: str
    slug: str
    name: str
    root: str
    trusted: bool
    state: Literal["loaded", "pending", "failed"]
    loaded_at: str
    agents: int
    problems: tuple[Problem, ...]
    tree: JsonObject | None


@dataclass(frozen=True, slots=True)
class LoadedProject:
    """One project in force. `tree` is None when its files had errors at the start."""

    record: ProjectRecord
    tree: AgentTree | None
    problems: tuple[Problem, ...]

    def view(self, *, pending: bool = False) -> ProjectView:
        """Return it as others see it."""
        return ProjectView(
            id=self.record.id,
            slug=self.record.slug,
            name=self.record.name,
            root=self.record.root,
            trusted=self.record.trusted,
            state="failed" if self.tree is None else "pending" if pending else "loaded",
            loaded_at=iso_utc(self.record.loaded_at_ms or 0),
            agents=0 if self.tree is None else len(self.tree.agents),
            problems=self.problems,
            tree=None if self.tree is None else describe(self.tree),
        )


@dataclass(frozen=True, slots=True)
class ProjectListeners:
    """Who is told of projects, in this order; `pending` says which one still lacks a plugin."""

    loaded: Sequence[Callable[[str, AgentTree], None]] = ()
    unloaded: Sequence[Callable[[str], None]] = ()
    pending: Callable[[str], bool] = lambda _project: False


class ProjectService:
    """Holds the loaded projects and changes them one at a time.

    A change is on record before it is made; when the audit trail cannot be written, nothing is
    changed. `settings` is asked for at each load, so that a reloaded configuration counts.
    """

    def __init__(
        self,
        store: Store,
        audit: AuditLog,
        settings: Callable[[], Settings],
    ) -> None:
        self._listeners = ProjectListeners()
        self._store = store
        self._audit = audit
        self._settings = settings
        self._loaded: dict[str, LoadedProject] = {}
        self._changing = asyncio.Lock()

    def connect(self, listeners: ProjectListeners) -> None:
        """Take who is told; before any project is loaded."""
        self._listeners = listeners

    def __len__(self) -> int:
        """Count the loaded projects."""
        return len(self._loaded)

    def trusted(self, project_id: str) -> bool:
        """Return whether the operator trusts a project; one that is not loaded is not trusted."""
        project = self._loaded.get(project_id)
        return project is not None and project.record.trusted

    async def restore(self) -> None:
        """Load what was loaded when the daemon last ended. A project that fails stays, as failed.

        A project's errors never keep the daemon from starting.
        """
        for record in await self._store.projects.list():
            if record.loaded_at_ms is None or len(self._loaded) >= MAX_PROJECTS:
                continue
            try:
                tree = await self._read(record.root)
            except ConfigFileInvalid as error:
                _log.warning("project.restore_failed", root=record.root, error=error.message)
                self._loaded[record.id] = LoadedProject(record, None, error.problems)
                await self._record_failure(record.root, error, None)
            else:
                self._loaded[record.id] = LoadedProject(record, tree, tree.warnings)
                self._tell_loaded(record.id, tree)

    async def load(self, root: str, who: Actor) -> ProjectView:
        """Read a project and keep it; one that is loaded already is read anew.

        Raises:
            KagedError: `project_root_invalid`; the path is not absolute, or no folder.
            ConfigFileInvalid: its files have errors; what was loaded before stays in force.
            KagedError: `too_many_projects`; the limit is reached.
            AuditUnavailable: it could not be put on record.
        """
        real = await asyncio.to_thread(_real_root, root)
        async with self._changing:
            return await self._load(real, who)

    async def reload(self, project_id: str, who: Actor) -> ProjectView:
        """Read a project's files again. Raises what `load` raises, and `project_not_found`."""
        async with self._changing:
            return await self._load(self._require(project_id).record.root, who)

    async def get(self, project_id: str) -> ProjectView:
        """Return one project. Raises `project_not_found`."""
        return self._view(self._require(project_id))

    async def page(
        self, cursor: str | None, limit: int
    ) -> tuple[Sequence[ProjectView], str | None]:
        """Return the projects behind `cursor` in the order of their ids.

        Raises `invalid_cursor`.
        """
        ids = sorted(self._loaded)
        if cursor is not None:
            # The cursor is the last id of the page before, which may be unloaded by now.
            if not cursor.startswith("prj_"):
                raise StoreError(
                    "This is not a cursor of this list.",
                    code="invalid_cursor",
                    fix="Begin without one.",
                )
            ids = [project_id for project_id in ids if project_id > cursor]
        shown = ids[:limit]
        more = len(ids) > limit
        views = [self._view(self._loaded[one]) for one in shown]
        return views, shown[-1] if more else None

    async def set_trusted(self, project_id: str, trusted: bool, who: Actor) -> ProjectView:
        """Trust a project, or stop. Raises `project_not_found` and AuditUnavailable."""
        async with self._changing:
            project = self._require(project_id)
            await self._record(
                "project.trusted",
                {
                    "root": project.record.root,
                    "slug": project.record.slug,
                    "trusted": trusted,
                },
                project_id,
                who,
            )
            record = await self._store.projects.set_trusted(project_id, trusted=trusted)
            if record is None:
                raise _not_found(project_id)
            self._loaded[project_id] = replace(project, record=record)
            return self._view(self._loaded[project_id])

    async def unload(self, project_id: str, who: Actor) -> None:
        """Let go of a project; its id and its trust are remembered. Raises `project_not_found`."""
        async with self._changing:
            record = self._require(project_id).record
            await self._record(
                "project.unloaded",
                {"root": record.root, "slug": record.slug, "reason": "asked"},
                project_id,
                who,
            )
            await self._store.projects.mark_unloaded(project_id)
            del self._loaded[project_id]
            for tell in self._listeners.unloaded:
                tell(project_id)

    async def _load(self, root: str, who: Actor) -> ProjectView:
        known = next((one for one in self._loaded.values() if one.record.root == root), None)
        if known is None and len(self._loaded) >= MAX_PROJECTS:
            raise KagedError(
                f"The daemon holds {MAX_PROJECTS} projects and no more.",
                code="too_many_projects",
                fix="Unload one with `kaged project unload`.",
            )
        self._audit.require_writable()
        try:
            tree = await self._read(root)
        except ConfigFileInvalid as error:
            await self._record_failure(root, error, who)
            raise
        project = tree.project
        record = await self._store.projects.upsert(root, project.slug, project.name)
        facts: JsonObject = {
            "root": root,
            "slug": record.slug,
            "name": record.name,
            "agents": len(tree.agents),
            "warnings": len(tree.warnings),
            "trusted": record.trusted,
            "reload": known is not None,
        }
        try:
            await self._record("project.loaded", facts, record.id, who)
        except AuditUnavailable:
            if known is None:
                # Not on record, so it does not come back at the next start either.
                await self._store.projects.mark_unloaded(record.id)
            raise
        self._loaded[record.id] = LoadedProject(record, tree, tree.warnings)
        self._tell_loaded(record.id, tree)
        return self._view(self._loaded[record.id])

    def _tell_loaded(self, project_id: str, tree: AgentTree) -> None:
        for tell in self._listeners.loaded:
            tell(project_id, tree)

    async def _read(self, root: str) -> AgentTree:
        settings = self._settings()
        loaded = await asyncio.to_thread(load_project, root)
        return resolve_agents(loaded, settings.daemon, settings.local)

    def _view(self, project: LoadedProject) -> ProjectView:
        """Return a project as others see it; pending while it lacks plugins that it declares."""
        return project.view(pending=self._listeners.pending(project.record.id))

    def _require(self, project_id: str) -> LoadedProject:
        project = self._loaded.get(project_id)
        if project is None:
            raise _not_found(project_id)
        return project

    async def _record(
        self, name: str, data: JsonObject, project_id: str, who: Actor | None
    ) -> None:
        event = AuditEvent(
            name,
            data,
            project_id=project_id,
            request_id=who.request_id if who else None,
            caller=who.label if who else None,
        )
        await self._audit.record(event, durable=True)

    async def _record_failure(self, root: str, error: ConfigFileInvalid, who: Actor | None) -> None:
        problems: list[JsonValue] = [str(one) for one in error.problems[:MAX_RECORDED_PROBLEMS]]
        event = AuditEvent(
            "project.load_failed",
            {"root": root, "reason": error.code, "problems": problems},
            request_id=who.request_id if who else None,
            caller=who.label if who else None,
        )
        await self._audit.record(event)


def _real_root(root: str) -> str:
    if not root.startswith("/") or "\0" in root:
        raise KagedError(
            f"{root[:200]!r} is not an absolute path.",
            code="project_root_invalid",
            fix="Name the project's folder in full.",
        )
    try:
        real = os.path.realpath(root, strict=True)
    except OSError as error:
        raise KagedError(
            f"{root[:200]} cannot be opened: {error.strerror}.",
            code="project_root_invalid",
            fix="Name the project's folder.",
        ) from error
    if not Path(real).is_dir():
        raise KagedError(
            f"{root[:200]} is not a folder.",
            code="project_root_invalid",
            fix="Name the project's folder.",
        )
    return real


def _not_found(project_id: str) -> KagedError:
    return KagedError(
        f"No project {project_id} is loaded.",
        code="project_not_found",
        fix="`kaged project list` shows the loaded ones; `kaged project load` loads one.",
    )
