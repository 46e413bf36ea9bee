"""`ProjectRows`: which projects this daemon knows, and which of them the operator trusts."""

from __future__ import annotations

from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, update

from kaged.base import Clock, Ids
from kaged.store.database import Database
from kaged.store.record_table import RecordTable
from kaged.store.schema import projects

_C = projects.c


@dataclass(frozen=True, slots=True)
class ProjectRecord:
    """One project that was loaded at some time. `root` is the absolute path of its folder."""

    id: str
    root: str
    slug: str
    name: str
    trusted: bool
    trusted_at_ms: int | None
    created_at_ms: int
    loaded_at_ms: int | None


_PROJECTS = RecordTable(projects, ProjectRecord)


class ProjectRows:
    """The known projects. A project is found by its root; its id stays the same for good."""

    def __init__(self, database: Database, clock: Clock, ids: Ids) -> None:
        self._database = database
        self._clock = clock
        self._ids = ids

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
        return await self._database.read(lambda conn: _PROJECTS.first(conn, _C.id == project_id))

    async def list(self) -> tuple[ProjectRecord, ...]:
        """Return all projects, in the order in which they were first loaded."""
        wanted = _PROJECTS.select().order_by(_C.id)
        return await self._database.read(lambda conn: tuple(_PROJECTS.all(conn, wanted)))

    async def set_trusted(self, project_id: str, *, trusted: bool) -> ProjectRecord | None:
        """Note that the operator trusts the project, or no longer does; None if it is unknown."""
        at_ms = self._clock.now_ms() if trusted else None

        def work(conn: Connection) -> ProjectRecord | None:
            conn.execute(
                update(projects)
                .where(_C.id == project_id)
                .values(trusted=trusted, trusted_at_ms=at_ms)
            )
            return _PROJECTS.first(conn, _C.id == project_id)

        return await self._database.write(work)

    async def mark_unloaded(self, project_id: str) -> None:
        """Note that the project is not loaded any more; its id and the trust in it stay."""

        def work(conn: Connection) -> None:
            conn.execute(update(projects).where(_C.id == project_id).values(loaded_at_ms=None))

        await self._database.write(work)

    async def remove(self, project_id: str) -> bool:
        """Forget a project; return whether it was known. Its audit rows stay."""

        def work(conn: Connection) -> bool:
            return conn.execute(delete(projects).where(_C.id == project_id)).rowcount > 0

        return await self._database.write(work)
