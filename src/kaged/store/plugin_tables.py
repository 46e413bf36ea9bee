"""`PluginTables`: runs plugins' statements, and remembers which name in the database is whose.

Reads run in a thread per plugin, on connections that cannot write. Writes take their turn in the
store's writer thread, between its transactions and on a connection of the plugin's own: they
never wait for each other's locks, and a write that is cut short undoes nobody else's.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TypeVar

from sqlalchemy import Connection, select

from kaged.base.lazy_dataclass import dataclass
from kaged.store.backends.sqlite_faults import open_fault
from kaged.store.backends.sqlite_guard import SqlGuard, Verb, verb_of
from kaged.store.backends.sqlite_guest import GuestConnection
from kaged.store.backends.sqlite_plugin_names import (
    NameChange,
    OwnedName,
    PluginNameRegistry,
    drop_names,
    read_catalog,
    read_usage,
    record_names,
    record_usage,
    rename_owner,
    require_own_parents,
)
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.database import Database
from kaged.store.errors import StoreUnavailable
from kaged.store.guest import (
    FaultKind,
    GuestFault,
    GuestLimits,
    GuestRows,
    GuestStep,
    NameKind,
)
from kaged.store.guest_reader import GuestReader
from kaged.store.schema import metadata, plugin_names, plugin_usage

T = TypeVar("T")

FULL_DISK_BYTES = 16 * 1024 * 1024  # with less, "no room" is not the plugin's doing
EXPORT_TIMEOUT_S = 300.0
HOST_TABLES = frozenset(fold_name(name) for name in metadata.tables)


@dataclass(slots=True)
class _Guest:
    """What is open for one plugin. `writer` is touched in the writer's thread only."""

    plugin: str
    owned: set[str]
    guard: SqlGuard
    reader: GuestReader
    writer: GuestConnection | None = None


class PluginTables:
    """The tables of all plugins. Names and statements in here are physical ones, folded."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._clock = database.clock
        self._plugin_names = PluginNameRegistry()
        self._guests: dict[str, _Guest] = {}
        self._loaded = False
        self._closed = False

    @property
    def usable(self) -> bool:
        """Whether statements can be run: loaded, open for writing, not closed, no disk trouble."""
        database = self._database
        ready = self._loaded and not self._closed and not database.read_only
        return ready and database.last_error is None

    async def load(self) -> None:
        """Read the records of names; before the first statement."""

        def work(conn: Connection) -> list[OwnedName]:
            names = plugin_names.c
            rows = conn.execute(select(names.physical, names.plugin, names.plain, names.kind))
            return [OwnedName(row[0], row[1], row[2], NameKind(row[3])) for row in rows]

        self._plugin_names.fill(await self._database.read(work))
        self._loaded = True

    def tables_of(self, plugin: str) -> list[str]:
        """Return a plugin's tables as the plugin names them, sorted."""
        return sorted(name.plain for name in self._names_of(plugin) if _is_table(name))

    def owner_of(self, physical: str) -> str | None:
        """Return which plugin a name belongs to."""
        found = self._plugin_names.names.get(physical)
        return None if found is None else found.plugin

    def mentions_foreign(self, plugin: str, text: str) -> bool:
        """Return whether a text holds a name that belongs to another plugin."""
        folded = fold_name(text)
        names = list(self._plugin_names.names.values())
        return any(name.physical in folded for name in names if name.plugin != plugin)

    async def used_bytes(self, plugin: str) -> int:
        """Return how much room a plugin's tables take, in whole pages as they were added."""

        def work(conn: Connection) -> int:
            wanted = select(plugin_usage.c.bytes).where(plugin_usage.c.plugin == plugin)
            return int(conn.execute(wanted).scalar() or 0)

        return await self._database.read(work)

    async def read(self, work: Callable[[Connection], T]) -> T:
        """Run a read of the host's own on one state of the database, for exports."""
        return await self._database.read(work, EXPORT_TIMEOUT_S)

    # -- statements ----------------------------------------------------------------------------

    async def aside(self, plugin: str, prefix: str, work: Callable[[], T]) -> T:
        """Run work that takes a while, but touches no database, in the plugin's thread."""
        return await self._guest(plugin, prefix).reader.call(work)

    async def query(
        self,
        plugin: str,
        prefix: str,
        step: GuestStep,
        limits: GuestLimits,
        shape: Callable[[GuestRows], T],
    ) -> T:
        """Run a SELECT of a plugin; `shape` turns its rows into the answer, in the same thread.

        Raises:
            GuestFault: it failed, is denied or ran into a limit.
        """
        reader = self._guest(plugin, prefix).reader
        self._plugin_names.require_free(plugin, step.statement.names)
        return await reader.call(lambda: shape(reader.connection.query(step, limits)))

    async def change(
        self, plugin: str, prefix: str, steps: Sequence[GuestStep], limits: GuestLimits
    ) -> list[int]:
        """Run statements of a plugin, all or none; return how many rows each changed.

        Raises:
            GuestFault: one failed, `step` says which; nothing was changed.
        """
        guest = self._guest(plugin, prefix)
        return await self._database.write_between(lambda: self._change(guest, steps, limits))

    async def drop(self, plugin: str) -> list[str]:
        """Drop everything that a plugin owns; return its tables' names as the plugin said them."""
        await self.leave(plugin)
        return await self._database.write_between(lambda: self._drop(plugin))

    async def hand_over(
        self,
        owner: str,
        heir: str,
        prefix: str,
        rename_index: Callable[[str, OwnedName, OwnedName], str],
    ) -> list[str]:
        """Make everything that one owner has another's, under its prefix; return the tables.

        Raises:
            GuestFault: the heir has tables already; nothing was changed.
        """
        await self.leave(owner)
        await self.leave(heir)
        return await self._database.write_between(
            lambda: self._hand_over(owner, heir, prefix, rename_index)
        )

    async def leave(self, plugin: str) -> None:
        """Close what is open for a plugin; it is opened again when needed."""
        guest = self._guests.pop(plugin, None)
        if guest is not None:
            await self._close_guests([guest])

    async def close(self) -> None:
        """Close everything; before the database itself. Safe to call twice."""
        self._closed = True
        guests = list(self._guests.values())
        self._guests.clear()
        await self._close_guests(guests)
        for guest in guests:
            await asyncio.to_thread(guest.reader.join)

    # -- in the writer's thread ----------------------------------------------------------------

    def _change(self, guest: _Guest, steps: Sequence[GuestStep], limits: GuestLimits) -> list[int]:
        if guest.writer is None:
            guest.writer = self._connect(GuestConnection.writing, guest.guard)
        done: list[NameChange] = []
        try:
            with guest.writer.transaction():
                return self._run_steps(guest, guest.writer, steps, limits, done)
        except BaseException:
            for change in reversed(done):
                self._plugin_names.revert(change)
            raise

    def _run_steps(
        self,
        guest: _Guest,
        conn: GuestConnection,
        steps: Sequence[GuestStep],
        limits: GuestLimits,
        done: list[NameChange],
    ) -> list[int]:
        ends_s = self._clock.monotonic_s() + limits.time_s
        used = read_usage(conn, guest.plugin)
        before = conn.used_bytes()
        conn.allow_growth(limits.database_bytes - used)
        counts: list[int] = []
        for number, step in enumerate(steps):
            left_s = max(0.0, ends_s - self._clock.monotonic_s())
            try:
                self._plugin_names.require_free(guest.plugin, step.statement.names)
                if verb_of(step.statement.sql) is Verb.ROWS:
                    counts.append(conn.change(step, left_s))
                else:
                    self._define(guest, conn, step, left_s, done)
                    counts.append(0)
            except GuestFault as fault:
                raise self._explained(fault, number, limits) from fault
        grown = conn.used_bytes() - before
        if grown > 0 and used + grown > limits.database_bytes:
            raise GuestFault(
                FaultKind.DATABASE, "there is no space left", limit=limits.database_bytes
            )
        if grown:
            record_usage(conn, guest.plugin, used + grown)
        return counts

    def _define(
        self,
        guest: _Guest,
        conn: GuestConnection,
        step: GuestStep,
        time_s: float,
        done: list[NameChange],
    ) -> None:
        claims = step.statement.claims
        before = read_catalog(conn)
        self._plugin_names.require_claimable(guest.plugin, claims, before)
        conn.change(step, time_s)
        change = self._plugin_names.compare(guest.plugin, claims, before, read_catalog(conn))
        # Later statements of the same transaction meet the names as they are now.
        self._plugin_names.apply(change)
        done.append(change)
        tables = [name.physical for name in self._names_of(guest.plugin) if _is_table(name)]
        require_own_parents(conn, guest.owned, tables)
        record_names(conn, change, self._clock.now_ms())

    def _drop(self, plugin: str) -> list[str]:
        names = self._names_of(plugin)
        conn = self._connect(GuestConnection.writing, SqlGuard("", frozenset()))
        try:
            conn.host("PRAGMA foreign_keys=OFF")  # only its own tables refer to its tables
            with conn.transaction():
                drop_names(conn, names, plugin)
        finally:
            conn.close()
        self._plugin_names.apply(NameChange(removed=names))
        return sorted(name.plain for name in names if _is_table(name))

    def _hand_over(
        self,
        owner: str,
        heir: str,
        prefix: str,
        rename_index: Callable[[str, OwnedName, OwnedName], str],
    ) -> list[str]:
        old = self._names_of(owner)
        if not old:
            return []
        reserved = NameChange(removed=self._names_of(heir))
        if any(name.kind is not NameKind.RESERVED for name in reserved.removed):
            raise GuestFault(FaultKind.CONSTRAINT, "there are tables of that name already")
        new = [
            OwnedName(fold_name(prefix + name.plain), heir, name.plain, name.kind) for name in old
        ]
        change = NameChange(added=new, removed=old)
        conn = self._connect(GuestConnection.writing, SqlGuard("", frozenset()))
        try:
            conn.host("PRAGMA foreign_keys=OFF")  # rows stay as they are, whatever they refer to
            with conn.transaction():
                used = read_usage(conn, owner)
                record_names(conn, reserved, self._clock.now_ms())
                rename_owner(conn, change, rename_index)
                record_names(conn, change, self._clock.now_ms())
                conn.host("DELETE FROM kaged_plugin_usage WHERE plugin = ?", owner)
                record_usage(conn, heir, used)
        finally:
            conn.close()
        self._plugin_names.apply(reserved)
        self._plugin_names.apply(change)
        return sorted(name.plain for name in new if _is_table(name))

    # -- own -----------------------------------------------------------------------------------

    def _explained(self, fault: GuestFault, step: int, limits: GuestLimits) -> GuestFault:
        """Add to a fault which statement it was and which limit of the whole request it met."""
        kind, message, limit = fault.kind, fault.message, fault.limit
        if kind is FaultKind.TIME:
            limit = limits.time_s
        elif kind is FaultKind.DATABASE:
            limit = limits.database_bytes
            folder = Path(self._database.backend.place).parent
            if shutil.disk_usage(folder).free < FULL_DISK_BYTES:
                kind, message, limit = FaultKind.UNAVAILABLE, "the disk is full", None
        return GuestFault(kind, message, limit=limit, name=fault.name, step=step)

    def _names_of(self, plugin: str) -> list[OwnedName]:
        return [name for name in list(self._plugin_names.names.values()) if name.plugin == plugin]

    def _guest(self, plugin: str, prefix: str) -> _Guest:
        found = self._guests.get(plugin)
        if found is not None:
            return found
        if self._closed or not self._loaded:
            raise StoreUnavailable("the plugins' tables are not open")
        owned = self._plugin_names.owned(plugin)

        def connect() -> GuestConnection:
            return self._connect(GuestConnection.reading, SqlGuard(prefix, owned))

        made = _Guest(plugin, owned, SqlGuard(prefix, owned), GuestReader(plugin, connect))
        self._guests[plugin] = made
        return made

    def _connect(self, how: Callable[..., GuestConnection], guard: SqlGuard) -> GuestConnection:
        backend = self._database.backend
        try:
            return how(backend, guard, self._clock)
        except Exception as error:
            raise open_fault(error, backend.place) from error

    async def _close_guests(self, guests: Iterable[_Guest]) -> None:
        for guest in guests:
            guest.reader.close()

            def close(guest: _Guest = guest) -> None:
                writer, guest.writer = guest.writer, None
                if writer is not None:
                    writer.close()

            try:
                await self._database.write_between(close)
            except StoreUnavailable:  # closed or read-only: its writer cannot be at work
                close()


def _is_table(name: OwnedName) -> bool:
    return name.kind is NameKind.TABLE
