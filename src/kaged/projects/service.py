"""`ProjectService`: the projects that the daemon holds; load, reload, trust, unload, on record."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from kaged.audit import AuditEvent, AuditLog, AuditUnavailable
from kaged.base import JsonObject, JsonValue, KagedError
from kaged.base.lazy_dataclass import dataclass
from kaged.base.log import get_logger
from kaged.config.agents import AgentTree
from kaged.config.problems import ConfigFileInvalid
from kaged.config.project import agent_specs, load_project
from kaged.config.project_ask import project_ask
from kaged.config.settings import Settings
from kaged.inbox import Inbox
from kaged.kernel.access import AccessGrant
from kaged.kernel.identity import Actor
from kaged.kernel.ownership import may_use_project
from kaged.projects.agreement import Agreement, SettingEdit, Standing, require_operator
from kaged.projects.granting import GrantProposal, propose_grants, write_proposal
from kaged.projects.in_force import agents_in_force
from kaged.projects.loaded import (
    LoadedProject,
    ProjectFiles,
    ProjectView,
    no_usable_project,
    project_not_found,
    real_root,
)
from kaged.projects.readiness import ProjectReadiness
from kaged.projects.trust import TrustRequests
from kaged.store import ProjectRecord, Store, StoreError

MAX_PROJECTS = 200
MAX_RECORDED_PROBLEMS = 20

_log = get_logger("kaged.projects")


@dataclass(frozen=True, slots=True)
class ProjectListeners:
    """Who is told of projects, in this order; `pending` says which one still lacks a plugin.

    `revoked` are told of a project that the operator no longer trusts, before it is loaded so.
    """

    loaded: Sequence[Callable[[str, AgentTree], None]] = ()
    revoked: Sequence[Callable[[str], None]] = ()
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
        inbox: Inbox,
        settings: Callable[[], Settings],
        readiness: ProjectReadiness | None = None,
    ) -> None:
        self._readiness = readiness or ProjectReadiness()
        self._listeners = ProjectListeners()
        self._store = store
        self._audit = audit
        self._settings = settings
        self._loaded: dict[str, LoadedProject] = {}
        self._changing = asyncio.Lock()
        self._trust = TrustRequests(inbox, self._agree)

    def connect(self, listeners: ProjectListeners) -> None:
        """Take who is told; before any project is loaded."""
        self._listeners = listeners

    def __len__(self) -> int:
        """Count the loaded projects."""
        return len(self._loaded)

    def opening(self) -> list[str]:
        """Return the projects that are not open yet, each with what is missing."""
        return [
            f"{project.record.name} lacks {', '.join(view.missing)} ({view.state})"
            for project_id, project in self._loaded.items()
            if (view := self._readiness.view(project_id)).missing
        ]

    def trusted(self, project_id: str) -> bool:
        """Return whether what a project's files say is in force; not for one that is not loaded."""
        project = self._loaded.get(project_id)
        return project is not None and project.trusted

    def name_of(self, project_id: str) -> str | None:
        """Return a project's name for people; None for one that is not loaded."""
        project = self._loaded.get(project_id)
        return None if project is None else project.record.name

    def names_of(self, project_id: str) -> frozenset[str]:
        """Return what a project goes by in the operator's files: its id, its slug, its folder."""
        project = self._loaded.get(project_id)
        if project is None:
            return frozenset({project_id})
        return frozenset({project_id, project.record.slug, project.record.root})

    def restricted(self) -> list[str]:
        """Return the slugs of the projects that are held to reading."""
        found = (one for one in self._loaded.values() if one.tree is not None and not one.trusted)
        return sorted(one.record.slug for one in found)

    def warnings(self) -> list[str]:
        """Return what a person should know of the loaded projects."""
        return [
            f"project {slug} is restricted to reading until you agree to what its files ask for: "
            f"`kaged project trust {slug}`"
            for slug in self.restricted()
        ]

    async def restore(self) -> None:
        """Load what was loaded when the daemon last ended. A project that fails stays, as failed.

        A project's errors never keep the daemon from starting.
        """
        for record in await self._store.projects.list():
            if record.loaded_at_ms is None or len(self._loaded) >= MAX_PROJECTS:
                continue
            try:
                files = await self._read(record.root)
            except ConfigFileInvalid as error:
                _log.warning("project.restore_failed", root=record.root, error=error.message)
                self._loaded[record.id] = LoadedProject(record, None, error.problems)
                await self._record_failure(record.root, error, None)
            else:
                self._put_in_force(record, files, None)

    async def load(self, root: str, who: Actor, agreement: Agreement | None = None) -> ProjectView:
        """Read a project and keep it; one that is loaded already is read anew.

        With an agreement, what its files ask for is agreed to. Otherwise it is restricted to
        reading, unless it asks for no more than was agreed to before.

        Raises:
            KagedError: `project_ask_changed`; it asks for something else; nothing was loaded.
            KagedError: `operator_only`; somebody else wants to agree.
            KagedError: `project_root_invalid`; the path is not absolute, or no folder.
            ConfigFileInvalid: its files have errors; what was loaded before stays in force.
            KagedError: `too_many_projects`; the limit is reached.
            AuditUnavailable: it could not be put on record.
        """
        real = await asyncio.to_thread(real_root, root)
        async with self._changing:
            return await self._load(real, who, agreement)

    async def reload(
        self, project_id: str, who: Actor, agreement: Agreement | None = None
    ) -> ProjectView:
        """Read a project's files again. Raises what `load` raises, and `project_not_found`."""
        async with self._changing:
            return await self._load(self._require(project_id).record.root, who, agreement)

    async def reload_edited(self, project_id: str, who: Actor, edit: SettingEdit) -> ProjectView:
        """Read a project again after the operator changed a setting through kaged itself.

        The change counts as agreed to if it is all that is new. Raises what `reload` raises.
        """
        async with self._changing:
            return await self._load(self._require(project_id).record.root, who, edit=edit)

    async def propose_grants(
        self, project_id: str, agent: str, grants: Sequence[AccessGrant]
    ) -> GrantProposal | None:
        """Return what giving an agent grants for good would write; None where that cannot be."""
        project = self._loaded.get(project_id)
        if project is None or project.standing is None or not project.trusted:
            return None
        digest = project.standing.ask.digest
        return await asyncio.to_thread(propose_grants, project.record.root, digest, agent, grants)

    async def write_grants(self, project_id: str, who: Actor, proposal: GrantProposal) -> None:
        """Write grants into a project's file, and agree to what it asks for then.

        Raises:
            KagedError: `operator_only`; somebody else wants to agree.
            KagedError: `project_not_found`, or as `write_proposal` and `load`.
        """
        require_operator(who)
        async with self._changing:
            root = self._require(project_id).record.root
            self._audit.require_writable()
            await asyncio.to_thread(write_proposal, root, proposal)
            await self._load(root, who, Agreement(proposal.digest))

    async def get(self, project_id: str) -> ProjectView:
        """Return one project. Raises `project_not_found`."""
        return self._view(self._require(project_id))

    def ids_of(self, words: Collection[str]) -> frozenset[str]:
        """Return the loaded projects that somebody names by id or slug."""
        return frozenset(
            project_id
            for project_id, project in self._loaded.items()
            if project_id in words or project.record.slug in words
        )

    async def page(
        self, cursor: str | None, limit: int, who: Actor
    ) -> tuple[Sequence[ProjectView], str | None]:
        """Return the projects behind `cursor` that somebody may use, in the order of their ids.

        Raises `invalid_cursor`.
        """
        ids = sorted(one for one in self._loaded if may_use_project(who, one))
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

    async def agree(self, project_id: str, who: Actor, digest: str | None = None) -> ProjectView:
        """Agree to what a project asks for; with a digest, only if that is what it asks for.

        Raises:
            KagedError: `project_not_found`; it is not loaded, or its files cannot be used.
            KagedError: `project_ask_changed`; it asks for something else by now.
            AuditUnavailable: it could not be put on record.
        """
        require_operator(who)
        self._asking(project_id).require(digest)
        if await self._trust.agree(project_id, who):
            return self._view(self._require(project_id))
        return await self._agree(project_id, who, digest)

    async def _agree(self, project_id: str, who: Actor, digest: str | None) -> ProjectView:
        async with self._changing:
            standing = self._asking(project_id)
            standing.require(digest)
            project = self._require(project_id)
            record = await self._record_agreement(project.record, standing, who)
            assert project.files is not None
            # What was read is agreed to, not what may lie on the disk by now.
            return self._put_in_force(record, project.files, who)

    async def withdraw(self, project_id: str, who: Actor) -> ProjectView:
        """Trust a project no longer: what runs in it ends, and from now on it is restricted.

        Raises `project_not_found` and AuditUnavailable.
        """
        require_operator(who)
        async with self._changing:
            project = self._require(project_id)
            facts: JsonObject = {
                "root": project.record.root,
                "slug": project.record.slug,
                "trusted": False,
            }
            await self._record("project.trusted", facts, project_id, who)
            record = await self._store.projects.withdraw(project_id)
            if record is None:
                raise project_not_found(project_id)
            if project.files is None:
                self._loaded[project_id] = replace(project, record=record)
                return self._view(self._loaded[project_id])
            for tell in self._listeners.revoked:
                tell(project_id)
            return self._put_in_force(record, project.files, who)

    async def _record_agreement(
        self, record: ProjectRecord, standing: Standing, who: Actor
    ) -> ProjectRecord:
        facts: JsonObject = {
            "root": record.root,
            "slug": record.slug,
            "trusted": True,
            "digest": standing.ask.digest,
            "widened": standing.recorded(),
        }
        await self._record("project.trusted", facts, record.id, who)
        agreed = await self._store.projects.agree(record.id, standing.ask.as_json(), who.label)
        if agreed is None:
            raise project_not_found(record.id)
        return agreed

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
            self._readiness.project_unloaded(project_id)
            self._trust.settled(project_id)
            for tell in self._listeners.unloaded:
                tell(project_id)

    async def _load(
        self,
        root: str,
        who: Actor,
        agreement: Agreement | None = None,
        edit: SettingEdit | None = None,
    ) -> ProjectView:
        known = next((one for one in self._loaded.values() if one.record.root == root), None)
        if known is None and len(self._loaded) >= MAX_PROJECTS:
            raise KagedError(
                f"The daemon holds {MAX_PROJECTS} projects and no more.",
                code="too_many_projects",
                fix="Unload one with `kaged project unload`.",
            )
        self._audit.require_writable()
        try:
            files = await self._read(root)
        except ConfigFileInvalid as error:
            await self._record_failure(root, error, who)
            raise
        if agreement is not None:
            require_operator(who)
            Standing(files.ask, None, ()).require(agreement.digest)
        project = files.project.value
        record = await self._store.projects.upsert(root, project.slug, project.name)
        facts: JsonObject = {
            "root": root,
            "slug": record.slug,
            "name": record.name,
            "agents": sum(1 for _ in agent_specs(project.primary)),
            "warnings": len(files.project.warnings),
            "reload": known is not None,
        }
        try:
            standing = Standing.of(files.ask, record)
            own = edit is not None and not who.is_person and standing.follows(edit)
            yes = agreement is not None or own
            facts["trusted"] = yes or not standing.restricted
            await self._record("project.loaded", facts, record.id, who)
            if yes and standing.restricted:
                record = await self._record_agreement(record, standing, who)
        except AuditUnavailable:
            if known is None:
                # Not on record, so it does not come back at the next start either.
                await self._store.projects.mark_unloaded(record.id)
            raise
        return self._put_in_force(record, files, who)

    def _put_in_force(
        self, record: ProjectRecord, files: ProjectFiles, who: Actor | None
    ) -> ProjectView:
        """Pass a project's agents to everybody: as its files say, or restricted."""
        standing, tree = agents_in_force(files.project, files.ask, record, self._settings())
        if standing.restricted:
            facts: JsonObject = {
                "root": record.root,
                "slug": record.slug,
                "digest": standing.ask.digest,
                "known": standing.agreed is not None,
                "widened": standing.recorded(),
            }
            self._post("project.restricted", facts, record.id, who)
        self._loaded[record.id] = LoadedProject(record, tree, tree.warnings, files, standing)
        self._trust.loaded(record, standing)
        self._tell_loaded(record.id, tree)
        return self._view(self._loaded[record.id])

    def _tell_loaded(self, project_id: str, tree: AgentTree) -> None:
        self._readiness.project_loaded(project_id)
        for tell in self._listeners.loaded:
            tell(project_id, tree)

    async def _read(self, root: str) -> ProjectFiles:
        loaded = await asyncio.to_thread(load_project, root)
        return ProjectFiles(loaded, project_ask(loaded.value))

    def _asking(self, project_id: str) -> Standing:
        standing = self._require(project_id).standing
        if standing is None:
            raise no_usable_project(project_id)
        return standing

    def _view(self, project: LoadedProject) -> ProjectView:
        """Return a project as others see it; pending while it lacks plugins that it declares."""
        project_id = project.record.id
        return project.view(
            self._readiness.view(project_id), pending=self._listeners.pending(project_id)
        )

    def _require(self, project_id: str) -> LoadedProject:
        project = self._loaded.get(project_id)
        if project is None:
            raise project_not_found(project_id)
        return project

    async def _record(
        self, name: str, data: JsonObject, project_id: str, who: Actor | None
    ) -> None:
        await self._audit.record(_event(name, data, project_id, who), durable=True)

    def _post(self, name: str, data: JsonObject, project_id: str, who: Actor | None) -> None:
        """Put on record what no error can undo any more."""
        try:
            self._audit.post(_event(name, data, project_id, who))
        except AuditUnavailable as error:
            _log.error("audit.not_recorded", name=name, error=error.message)

    async def _record_failure(self, root: str, error: ConfigFileInvalid, who: Actor | None) -> None:
        problems: list[JsonValue] = [str(one) for one in error.problems[:MAX_RECORDED_PROBLEMS]]
        event = AuditEvent(
            "project.load_failed",
            {"root": root, "reason": error.code, "problems": problems},
            request_id=who.request_id if who else None,
            caller=who.label if who else None,
        )
        await self._audit.record(event)


def _event(name: str, data: JsonObject, project_id: str, who: Actor | None) -> AuditEvent:
    return AuditEvent(
        name,
        data,
        project_id=project_id,
        request_id=who.request_id if who else None,
        caller=who.label if who else None,
    )
