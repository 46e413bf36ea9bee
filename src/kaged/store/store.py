"""`Store`: the database and the repositories on it, opened, checked and migrated in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from kaged.base import Clock, Ids
from kaged.store.audit_rows import AuditRows
from kaged.store.backends import SqliteBackend, backend_for
from kaged.store.database import Database
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


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is doing, for status pages."""

    place: str
    schema_version: int
    last_error: str | None


class Store(Database):
    """Everything that outlives the daemon's process: the database with its repositories.

    `audit`, `projects`, `sessions`, `entries`, `branches`, `agent_runs`, `tool_calls`, `issues`,
    `todos`, `runs` and `interactions` are the repositories.
    """

    def __init__(
        self,
        backend: SqliteBackend,
        clock: Clock,
        ids: Ids,
        version: int,
        migrated: Migrated | None,
        *,
        read_only: bool = False,
    ) -> None:
        super().__init__(backend, read_only=read_only)
        self._version = version
        self.migrated = migrated
        self.audit = AuditRows(self)
        self.projects = ProjectRows(self, clock, ids)
        self._clock = clock
        self._ids = ids

    # The repositories of what is worked on load when they are first asked for: none of them is
    # needed before the daemon answers.

    @cached_property
    def plugin_tables(self) -> PluginTables:
        """The tables of plugins."""
        from kaged.store.plugin_tables import PluginTables  # noqa: PLC0415 - see above

        return PluginTables(self, self._clock)

    @cached_property
    def sessions(self) -> SessionRows:
        """The sessions."""
        from kaged.store.session_rows import SessionRows  # noqa: PLC0415 - see above

        return SessionRows(self, self._clock)

    @cached_property
    def entries(self) -> EntryRows:
        """What was said and done in sessions."""
        from kaged.store.entry_rows import EntryRows  # noqa: PLC0415 - see above

        return EntryRows(self, self._clock, self._ids)

    @cached_property
    def entry_search(self) -> EntrySearch:
        """Search over what was said and done in sessions."""
        from kaged.store.entry_search import EntrySearch  # noqa: PLC0415 - see above

        return EntrySearch(self)

    @cached_property
    def branches(self) -> BranchRows:
        """Sessions as wholes: begun, forked, taken away."""
        from kaged.store.branch_rows import BranchRows  # noqa: PLC0415 - see above

        return BranchRows(self, self._clock, self._ids, self.entries)

    @cached_property
    def agent_runs(self) -> AgentRunRows:
        """The runs of root agents."""
        from kaged.store.agent_run_rows import AgentRunRows  # noqa: PLC0415 - see above

        return AgentRunRows(self, self._clock, self._ids)

    @cached_property
    def tool_calls(self) -> ToolCallRows:
        """The tool calls of sessions."""
        from kaged.store.tool_call_rows import ToolCallRows  # noqa: PLC0415 - see above

        return ToolCallRows(self)

    @cached_property
    def issues(self) -> IssueRows:
        """The issues."""
        from kaged.store.issue_rows import IssueRows  # noqa: PLC0415 - see above

        return IssueRows(self, self._clock, self._ids)

    @cached_property
    def todos(self) -> TodoRows:
        """The todo lists."""
        from kaged.store.todo_rows import TodoRows  # noqa: PLC0415 - see above

        return TodoRows(self, self._clock)

    @cached_property
    def runs(self) -> RunRows:
        """The workflow runs."""
        from kaged.store.run_rows import RunRows  # noqa: PLC0415 - see above

        return RunRows(self, self._clock, self._ids)

    @cached_property
    def interactions(self) -> InteractionRows:
        """The questions to the operator."""
        from kaged.store.interaction_rows import InteractionRows  # noqa: PLC0415 - see above

        return InteractionRows(self, self._clock)

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
            StoreError: `store_newer_schema`; a newer kaged made it.
            StoreError: `store_foreign`; it is some other program's.
            StoreError: `store_migration_failed`; a migration failed; it is as it was.
            StoreUnavailable: it cannot be read or written.
            StoreError: `store_url_invalid`; the URL names no database.
        """
        backend = backend_for(url, backup_dir)
        prepare = _look if read_only else _prepare
        version, migrated = await asyncio.to_thread(prepare, backend, clock, migrations)
        return cls(backend, clock, ids, version, migrated, read_only=read_only)

    @property
    def status(self) -> StoreStatus:
        """How the store is doing now."""
        error = self.last_error
        return StoreStatus(self.backend.place, self._version, error.message if error else None)

    async def close(self) -> None:
        """Finish what is queued and close. Safe to call twice."""
        if "plugin_tables" in self.__dict__:  # otherwise nobody asked for them
            await self.plugin_tables.close()
        await super().close()


def _prepare(
    backend: SqliteBackend, clock: Clock, migrations: Sequence[Migration]
) -> tuple[int, Migrated | None]:
    if not backend.exists:
        backend.create(lambda draft: _migrated(draft, clock, migrations))
        _migrated(backend, clock, migrations)  # finds nothing to do and sets the file's mode
        version = migrations[-1].version
        return version, Migrated(0, version, None)
    _require_known(backend, migrations)
    return migrations[-1].version, _migrated(backend, clock, migrations)


def _migrated(
    backend: SqliteBackend, clock: Clock, migrations: Sequence[Migration]
) -> Migrated | None:
    with _translating(backend):
        conn = backend.connect_writer()
        try:
            return migrate(conn, backend, clock, migrations)
        finally:
            conn.close()


def _look(
    backend: SqliteBackend, clock: Clock, migrations: Sequence[Migration]
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


def _require_known(backend: SqliteBackend, migrations: Sequence[Migration]) -> int:
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
def _translating(backend: SqliteBackend) -> Generator[None]:
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
