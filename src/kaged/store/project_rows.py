"""`ProjectRows`: which projects this daemon knows, and which of them the operator trusts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import Connection, delete, update

from kaged.base import JsonObject
from kaged.base.lazy_dataclass import dataclass
from kaged.store.record_table import RecordTable
from kaged.store.rows import RowRepository
from kaged.store.schema import projects

_C = projects.c
MAX_NAME_CHARS = 200


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """One project that was loaded at some time. `root` is the absolute path of its folder.

    `agreed` is the ask that the operator last agreed to.
    """

    id: str
    root: str
    slug: str
    name: str
    trusted: bool
    trusted_at_ms: int | None
    created_at_ms: int
    loaded_at_ms: int | None
    trusted_by: str | None = None
    agreed: JsonObject | None = None


_PROJECTS = RecordTable(projects, ProjectRecord, json_columns=("agreed",))


class ProjectRows(RowRepository):
    """The known projects. A project is found by its root; its id stays the same for good."""

    async def upsert(self, root: str, slug: str, name: str) -> ProjectRecord:
        """Remember that the project at this root was loaded now; a new one is not trusted."""
        now_ms = self._clock.now_ms()
        fresh = ProjectRecord(
            self._ids.tagged("prj"), root, slug, name, False, None, now_ms, now_ms
        )

        def work(conn: Connection) -> ProjectRecord:
            known = _PROJECTS.first(conn, _C.root == root)
            loaded = fresh
            if known is not None:
                loaded = replace(known, slug=slug, name=name, loaded_at_ms=now_ms)
            _PROJECTS.put(conn, loaded)
            return loaded

        return await self._database.write(work)

    async def get(self, project_id: str) -> ProjectRecord | None:
        """Return a project by its id."""
        return await self._first(_PROJECTS, _C.id == project_id)

    async def at(self, root: str) -> ProjectRecord | None:
        """Return the project of a folder, given as its absolute path."""
        return await self._first(_PROJECTS, _C.root == root)

    async def list(self) -> tuple[ProjectRecord, ...]:
        """Return all projects, in the order in which they were first loaded."""
        return tuple(await self._all(_PROJECTS, _PROJECTS.select().order_by(_C.id)))

    async def names(self) -> frozenset[str]:
        """Return what projects can be named by: the ids and slugs of all of them."""
        found = await self.list()
        return frozenset(word for one in found for word in (one.id, one.slug))

    async def agree(self, project_id: str, ask: JsonObject, by: str) -> ProjectRecord | None:
        """Note that the operator agreed to what a project asks for; None if it is unknown."""

        def change(known: ProjectRecord) -> ProjectRecord:
            now_ms = self._clock.now_ms()
            by_name = by[:MAX_NAME_CHARS]
            return replace(
                known, trusted=True, trusted_at_ms=now_ms, trusted_by=by_name, agreed=ask
            )

        return await self._change(project_id, change)

    async def withdraw(self, project_id: str) -> ProjectRecord | None:
        """Forget what the operator agreed to for a project; None if it is unknown."""

        def change(known: ProjectRecord) -> ProjectRecord:
            return replace(known, trusted=False, trusted_at_ms=None, trusted_by=None, agreed=None)

        return await self._change(project_id, change)

    async def _change(
        self, project_id: str, change: Callable[[ProjectRecord], ProjectRecord]
    ) -> ProjectRecord | None:
        def work(conn: Connection) -> ProjectRecord | None:
            known = _PROJECTS.first(conn, _C.id == project_id)
            if known is None:
                return None
            changed = change(known)
            _PROJECTS.put(conn, changed)
            return changed

        return await self._database.write(work)

    async def mark_unloaded(self, project_id: str) -> None:
        """Note that the project is not loaded any more; its id and the trust in it stay."""
        await self._execute(update(projects).where(_C.id == project_id).values(loaded_at_ms=None))

    async def remove(self, project_id: str) -> bool:
        """Forget a project; return whether it was known. Its audit rows stay."""
        return await self._execute(delete(projects).where(_C.id == project_id)) > 0
