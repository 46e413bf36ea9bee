"""`Store`: the database and the repositories on it, opened, checked and migrated in one call."""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

from kaged.base import Clock, Ids
from kaged.base.lazy_dataclass import dataclass
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
    from kaged.store.access_grant_rows import AccessGrantRows
    from kaged.store.agent_run_rows import AgentRunRows
    from kaged.store.branch_rows import BranchRows
    from kaged.store.entry_rows import EntryRows
    from kaged.store.entry_search import EntrySearch
    from kaged.store.inbox_rows import InboxRows
    from kaged.store.interaction_rows import InteractionRows
    from kaged.store.issue_rows import IssueRows
    from kaged.store.pipeline_trace_rows import PipelineTraceRows
    from kaged.store.plugin_tables import PluginTables
    from kaged.store.run_rows import RunRows
    from kaged.store.session_rows import SessionRows
    from kaged.store.session_skill_rows import SessionSkillRows
    from kaged.store.sign_in_rows import SignInRows
    from kaged.store.todo_rows import TodoRows
    from kaged.store.tool_call_rows import ToolCallRows

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """How the store is doing, for status pages."""

    place: str
    schema_version: int
    last_error: str | None


class _Repository(Generic[T]):
    """A repository that is loaded when it is first asked for; `home` is its module and class."""

    def __init__(self, home: str) -> None:
        self._home = home

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, store: Store, owner: type) -> T:
        module, _, kind = self._home.partition(":")
        made: T = getattr(import_module(f"kaged.store.{module}"), kind)(store)
        store.__dict__[self._name] = made  # where it is found before this from now on
        return made


class Store(Database):
    """Everything that outlives the daemon's process: the database with its repositories.

    Of the repositories, only what the daemon needs before it answers is there from the start.
    """

    plugin_tables: _Repository[PluginTables] = _Repository("plugin_tables:PluginTables")
    sessions: _Repository[SessionRows] = _Repository("session_rows:SessionRows")
    session_skills: _Repository[SessionSkillRows] = _Repository(
        "session_skill_rows:SessionSkillRows"
    )
    entries: _Repository[EntryRows] = _Repository("entry_rows:EntryRows")
    entry_search: _Repository[EntrySearch] = _Repository("entry_search:EntrySearch")
    branches: _Repository[BranchRows] = _Repository("branch_rows:BranchRows")
    agent_runs: _Repository[AgentRunRows] = _Repository("agent_run_rows:AgentRunRows")
    tool_calls: _Repository[ToolCallRows] = _Repository("tool_call_rows:ToolCallRows")
    pipeline_traces: _Repository[PipelineTraceRows] = _Repository(
        "pipeline_trace_rows:PipelineTraceRows"
    )
    issues: _Repository[IssueRows] = _Repository("issue_rows:IssueRows")
    todos: _Repository[TodoRows] = _Repository("todo_rows:TodoRows")
    sign_ins: _Repository[SignInRows] = _Repository("sign_in_rows:SignInRows")
    runs: _Repository[RunRows] = _Repository("run_rows:RunRows")
    access: _Repository[AccessGrantRows] = _Repository("access_grant_rows:AccessGrantRows")
    inbox: _Repository[InboxRows] = _Repository("inbox_rows:InboxRows")
    interactions: _Repository[InteractionRows] = _Repository("interaction_rows:InteractionRows")

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
        super().__init__(backend, clock, ids, read_only=read_only)
        self._version = version
        self.migrated = migrated
        self.audit = AuditRows(self)
        self.projects = ProjectRows(self)

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

    @staticmethod
    def is_made(url: str, backup_dir: Path) -> bool:
        """Return whether a daemon has made this database. Raises `store_url_invalid`."""
        return backend_for(url, backup_dir).exists

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
