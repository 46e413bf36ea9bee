"""`Store`: the database and the repositories on it, opened, checked and migrated in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from sqlalchemy import Connection

from kaged.base import Clock, Ids
from kaged.store.audit_rows import AuditRows
from kaged.store.backends import DatabaseBackend, backend_for
from kaged.store.database import READ_TIMEOUT_S, Database
from kaged.store.errors import StoreError, StoreUnavailable
from kaged.store.migrations import (
    MIGRATIONS,
    Migrated,
    Migration,
    current_version,
    migrate,
    require_not_newer,
)
from kaged.store.project_rows import ProjectRows

if TYPE_CHECKING:
    from kaged.store.agent_run_rows import AgentRunRows
    from kaged.store.branch_rows import BranchRows
    from kaged.store.entry_rows import EntryRows
    from kaged.store.entry_search import EntrySearch
    from kaged.store.interaction_rows import InteractionRows
    from kaged.store.issue_rows import IssueRows
    from kaged.store.plugin_tables import PluginTables
    from kaged.store.run_rows import RunRows
    from kaged.store.session_rows import SessionRows
    from kaged.store.todo_rows import TodoRows
    from kaged.store.tool_call_rows import ToolCallRows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is doing, for status pages."""

    place: str
    schema_version: int
    last_error: str | None


class Store:
    """Everything that outlives the daemon's process.

    `audit`, `projects`, `sessions`, `entries`, `branches`, `agent_runs`, `tool_calls`, `issues`,
    `todos`, `runs` and `interactions` are the repositories. `write` and `read` are for
    repositories of other packages, which are built the same way.
    """

    def __init__(
        self, database: Database, clock: Clock, ids: Ids, version: int, migrated: Migrated | None
    ) -> None:
        self._database = database
        self._version = version
        self.migrated = migrated
        self.audit = AuditRows(database)
        self.projects = ProjectRows(database, clock, ids)
        self._clock = clock
        self._ids = ids

    # The repositories of what is worked on load when they are first asked for: none of them is
    # needed before the daemon answers.

    @cached_property
    def plugin_tables(self) -> PluginTables:
        """The tables of plugins."""
        from kaged.store.plugin_tables import PluginTables  # noqa: PLC0415 - see above

        return PluginTables(self._database, self._clock)

    @cached_property
    def sessions(self) -> SessionRows:
        """The sessions."""
        from kaged.store.session_rows import SessionRows  # noqa: PLC0415 - see above

        return SessionRows(self._database, self._clock)

    @cached_property
    def entries(self) -> EntryRows:
        """What was said and done in sessions."""
        from kaged.store.entry_rows import EntryRows  # noqa: PLC0415 - see above

        return EntryRows(self._database, self._clock, self._ids)

    @cached_property
    def entry_search(self) -> EntrySearch:
        """Search over what was said and done in sessions."""
        from kaged.store.entry_search import EntrySearch  # noqa: PLC0415 - see above

        return EntrySearch(self._database)

    @cached_property
    def branches(self) -> BranchRows:
        """Sessions as wholes: begun, forked, taken away."""
        from kaged.store.branch_rows import BranchRows  # noqa: PLC0415 - see above

        return BranchRows(self._database, self._clock, self._ids, self.entries)

    @cached_property
    def agent_runs(self) -> AgentRunRows:
        """The runs of root agents."""
        from kaged.store.agent_run_rows import AgentRunRows  # noqa: PLC0415 - see above

        return AgentRunRows(self._database, self._clock, self._ids)

    @cached_property
    def tool_calls(self) -> ToolCallRows:
        """The tool calls of sessions."""
        from kaged.store.tool_call_rows import ToolCallRows  # noqa: PLC0415 - see above

        return ToolCallRows(self._database)

    @cached_property
    def issues(self) -> IssueRows:
        """The issues."""
        from kaged.store.issue_rows import IssueRows  # noqa: PLC0415 - see above

        return IssueRows(self._database, self._clock, self._ids)

    @cached_property
    def todos(self) -> TodoRows:
        """The todo lists."""
        from kaged.store.todo_rows import TodoRows  # noqa: PLC0415 - see above

        return TodoRows(self._database, self._clock)

    @cached_property
    def runs(self) -> RunRows:
        """The workflow runs."""
        from kaged.store.run_rows import RunRows  # noqa: PLC0415 - see above

        return RunRows(self._database, self._clock, self._ids)

    @cached_property
    def interactions(self) -> InteractionRows:
        """The questions to the operator."""
        from kaged.store.interaction_rows import InteractionRows  # noqa: PLC0415 - see above

        return InteractionRows(self._database, self._clock)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        ids: Ids,
        backup_dir: Path,
        read_only: bool = False,
        migrations: Sequence[Migration] = MIGRATIONS,
    ) -> Store:
        """Open the database, making or migrating it if need be.

        The file is checked first, through a connection that cannot write. Before a migration it
        is copied to `backup_dir`. With `read_only` nothing is made or migrated; that is how other
        programs look into the database of a running daemon.

        Raises:
            StoreCorrupt: it is damaged; nothing was touched.
            StoreNewer: a newer kaged made it.
            StoreForeign: it is some other program's.
            StoreMigrationFailed: a migration failed; it is as it was.
            StoreUnavailable: it cannot be read or written.
            StoreUrlInvalid: the URL names no database.
        """
        backend = backend_for(url, backup_dir)
        prepare = _look if read_only else _prepare
        version, migrated = await asyncio.to_thread(prepare, backend, clock, migrations)
        return cls(Database(backend, read_only=read_only), clock, ids, version, migrated)

    @property
    def status(self) -> StoreStatus:
        """How the store is doing now."""
        error = self._database.last_error
        return StoreStatus(
            self._database.backend.place, self._version, error.message if error else None
        )

    async def write(self, work: Callable[[Connection], T]) -> T:
        """Run a unit of work in the one writer's transaction; returns when it is on disk."""
        return await self._database.write(work)

    async def read(self, work: Callable[[Connection], T], timeout_s: float = READ_TIMEOUT_S) -> T:
        """Run a query on a connection that cannot write, on one state of the database."""
        return await self._database.read(work, timeout_s)

    async def backup(self, target: Path) -> None:
        """Copy the database, as of now, into a new file; the daemon may go on writing."""
        await self._database.backup(target)

    async def check(self) -> None:
        """Check every page; raises StoreCorrupt if one is damaged. Takes a while when large."""
        await self._database.check()

    async def close(self) -> None:
        """Finish what is queued and close. Safe to call twice."""
        if "plugin_tables" in self.__dict__:  # otherwise nobody asked for them
            await self.plugin_tables.close()
        await self._database.close()


def _prepare(
    backend: DatabaseBackend, clock: Clock, migrations: Sequence[Migration]
) -> tuple[int, Migrated | None]:
    if not backend.exists:
        backend.create(lambda draft: _build(draft, clock, migrations))
        _migrated(backend, clock, migrations)  # finds nothing to do and sets the file's mode
        version = migrations[-1].version
        return version, Migrated(0, version, None)
    _require_known(backend, migrations)
    return migrations[-1].version, _migrated(backend, clock, migrations)


def _migrated(
    backend: DatabaseBackend, clock: Clock, migrations: Sequence[Migration]
) -> Migrated | None:
    with _translating(backend):
        conn = backend.connect_writer()
        try:
            return migrate(conn, backend, clock, migrations)
        finally:
            conn.close()


def _build(draft: DatabaseBackend, clock: Clock, migrations: Sequence[Migration]) -> None:
    _migrated(draft, clock, migrations)


def _look(
    backend: DatabaseBackend, clock: Clock, migrations: Sequence[Migration]
) -> tuple[int, Migrated | None]:
    del clock  # a look changes nothing, so there is no time to note
    if not backend.exists:
        raise StoreUnavailable(
            f"there is no database at {backend.place}", fix="start the daemon once to make it"
        )
    found = _require_known(backend, migrations)
    if found < migrations[-1].version:
        raise StoreUnavailable(
            f"the database has schema {found} and needs {migrations[-1].version}",
            fix="start the daemon once; it migrates the database",
        )
    return found, None


def _require_known(backend: DatabaseBackend, migrations: Sequence[Migration]) -> int:
    """Look at the database through a connection that cannot write; return its version."""
    backend.check()
    with _translating(backend):
        conn = backend.connect_reader()
        try:
            with conn.begin():
                found = current_version(conn)
        finally:
            conn.close()
    require_not_newer(found, migrations)
    return found


@contextmanager
def _translating(backend: DatabaseBackend) -> Generator[None]:
    """Let database errors out of a block as errors of ours."""
    try:
        yield
    except StoreError:
        raise
    except Exception as error:
        known = backend.translate(error)
        if known is None:
            raise
        raise known from error
