"""`StorageBroker`: answers plugins' storage requests, and lets none of them see more than its own.

Every access goes through here (PH-STOR-01). The road of a statement, in one function each for
reading and writing: capability → text → names → limits → run → answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from kaged.audit import AuditLog
from kaged.base import Clock, Ids, JsonObject, JsonValue, KagedError
from kaged.base.log import get_logger
from kaged.kernel.capabilities import CapabilitySet, StorageAccess, StorageCapability
from kaged.plugins.storage.export import StorageExport, write_export
from kaged.plugins.storage.names import OUTSIDE_TABLES, PluginSchema, outside, quoted
from kaged.plugins.storage.plugin_state import PluginStorageState, StorageTransaction
from kaged.plugins.storage.quota import StorageQuota
from kaged.plugins.storage.refusal import denied_event, refusal
from kaged.plugins.storage.requests import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    parse_request,
    parse_transaction,
)
from kaged.plugins.storage.statement import Rewritten
from kaged.plugins.storage.values import shape_rows
from kaged.store import Store, StoreError
from kaged.store.backends.sqlite_plugin_names import OwnedName
from kaged.store.backends.sqlite_words import fold_name
from kaged.store.guest import FaultKind, GuestFault, GuestRows, GuestStep
from kaged.wire.errors import (
    InvalidParams,
    MethodNotFound,
    ResourceBusy,
    StorageAccessDenied,
)
from kaged.wire.methods import StorageMethod

_log = get_logger(__name__)

Rewriter = Callable[[PluginSchema, str], Rewritten]


class StorageBroker:
    """The host's side of `kaged.storage.*`, for all plugins. Make one with `open`."""

    def __init__(
        self,
        store: Store,
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        *,
        quota: StorageQuota | None = None,
        quotas: Mapping[str, StorageQuota] | None = None,
        rewriter: Rewriter | None = None,
    ) -> None:
        self._store = store
        self._tables = store.plugin_tables
        self._audit = audit
        self._clock = clock
        self._ids = ids
        self._quota = quota or StorageQuota()
        self._quotas = dict(quotas or {})
        self._rewriter = rewriter
        self._states: dict[str, PluginStorageState] = {}
        # One plugin's write at a time is in the writer's queue: the host's own writes wait for
        # one statement of a plugin at most, however many plugins there are.
        self._turn = asyncio.Lock()

    @classmethod
    async def open(
        cls,
        store: Store,
        audit: AuditLog,
        clock: Clock,
        ids: Ids,
        *,
        quota: StorageQuota | None = None,
        quotas: Mapping[str, StorageQuota] | None = None,
        rewriter: Rewriter | None = None,
    ) -> StorageBroker:
        """Make a broker on an open store. `quotas` are the exceptions from `quota`, by plugin."""
        await store.plugin_tables.load()
        return cls(store, audit, clock, ids, quota=quota, quotas=quotas, rewriter=rewriter)

    def available(self, plugin: str) -> bool:
        """Return whether storage is ready; the same for all plugins, despite their capabilities."""
        del plugin
        return self._tables.usable

    async def answer(
        self, plugin: str, capabilities: CapabilitySet, method: str, params: JsonValue
    ) -> JsonValue:
        """Answer one storage request of a plugin.

        Raises:
            StorageAccessDenied: without the capability or outside the plugin's tables; audited.
            InvalidParams: the params or the SQL are wrong.
            PluginError: the statement failed or ran into a limit.
            ResourceBusy: a second transaction was begun, or a write took too long just before.
            MethodNotFound: there is no such method.
        """
        try:
            return await self._answer(plugin, _access(capabilities), method, params)
        except StorageAccessDenied as error:
            await self._record(plugin, params, error, None)
            raise
        except StoreError as fault:
            error = refusal(fault, PluginSchema.of(plugin), self._tables)
            if isinstance(error, StorageAccessDenied):
                await self._record(plugin, params, error, fault)
            raise error from fault

    async def plugin_exited(self, plugin: str) -> None:
        """Roll back what the ended process left open and close what was open for it."""
        self._states.pop(plugin, None)
        await self._tables.leave(plugin)

    def tables_of(self, plugin: str) -> list[str]:
        """Return the names of a plugin's tables, as the plugin knows them."""
        return self._tables.tables_of(plugin)

    async def drop(self, plugin: str) -> list[str]:
        """Drop all tables of a plugin (uninstall); return their names as the plugin knew them."""
        self._states.pop(plugin, None)
        async with self._turn:
            return await self._tables.drop(plugin)

    async def hand_over(self, owner: str, heir: str) -> list[str]:
        """Make all tables of one owner another's; return their names as a plugin knows them.

        For data that outlives its plugin: in the meantime it belongs to a name no plugin can have.
        """
        self._states.pop(owner, None)
        self._states.pop(heir, None)
        prefix = PluginSchema.of(heir).prefix
        async with self._turn:
            return await self._tables.hand_over(owner, heir, prefix, _rename_index)

    async def export(self, plugin: str, target: Path) -> StorageExport:
        """Write a plugin's tables into a new file of SQL that any SQLite can read.

        Raises:
            StoreUnavailable: the file exists or cannot be written.
        """
        return await write_export(self._tables, PluginSchema.of(plugin), target)

    async def used_bytes(self, plugin: str) -> int:
        """Return how much room a plugin's tables take, for status pages."""
        return await self._tables.used_bytes(plugin)

    # -- methods -------------------------------------------------------------------------------

    async def _answer(
        self, plugin: str, access: StorageAccess | None, method: str, params: JsonValue
    ) -> JsonValue:
        if method == StorageMethod.QUERY:
            _require(access, StorageAccess.READ, method)
            return await self._query(self._state_of(plugin), params, access)
        if method == StorageMethod.SCHEMA:
            _require(access, StorageAccess.READ, method)
            tables: list[JsonValue] = list(self._tables.tables_of(plugin))
            return {"tables": tables}
        if method not in {StorageMethod.EXEC, BEGIN, COMMIT, ROLLBACK}:
            raise MethodNotFound(f"the host has no method {method[:100]}")
        _require(access, StorageAccess.WRITE, method)
        state = self._state_of(plugin)
        async with state.lock:
            match method:
                case StorageMethod.EXEC:
                    return await self._exec(state, params)
                case _ if method == BEGIN:
                    return self._begin(state)
                case _ if method == COMMIT:
                    return await self._commit(state, parse_transaction(params))
                case _:
                    state.require(parse_transaction(params), self._clock.monotonic_s())
                    state.transaction = None
                    return {}

    async def _query(
        self, state: PluginStorageState, params: JsonValue, access: StorageAccess | None
    ) -> JsonObject:
        request = parse_request(params)
        if request.transaction is not None:
            raise InvalidParams("query sees what is committed; it takes no transaction")
        async with state.lock:
            statement = state.recall(request.sql) or await self._rewrite(state, request.sql)
            if not statement.reads_only:
                if access is not StorageAccess.WRITE:
                    raise StorageAccessDenied(f"{statement.kind} needs kaged:storage:write")
                raise InvalidParams(f"query runs SELECT only; {statement.kind} is for exec")
            self._require_inside(state, statement)
            quota = self._quota_of(state)

            def shape(rows: GuestRows) -> JsonObject:
                return shape_rows(rows, statement, quota.result_bytes)

            return await self._tables.query(
                state.schema.plugin,
                state.schema.prefix,
                GuestStep(statement.guest, request.values),
                quota.reading(),
                shape,
            )

    async def _exec(self, state: PluginStorageState, params: JsonValue) -> JsonObject:
        request = parse_request(params)
        held: StorageTransaction | None = None
        if request.transaction is not None:
            held = state.require(request.transaction, self._clock.monotonic_s())
        statement = state.recall(request.sql) or await self._rewrite(state, request.sql)
        if statement.reads_only:
            raise InvalidParams("exec changes something; a SELECT is for query")
        self._require_inside(state, statement, held)
        step = GuestStep(statement.guest, request.values)
        if held is not None:
            held.add(statement, step, self._clock.monotonic_s())
            return {"rows_affected": 0, "queued": len(held.steps)}
        counts = await self._run(state, [step])
        return {"rows_affected": counts[0]}

    def _begin(self, state: PluginStorageState) -> JsonObject:
        now_s = self._clock.monotonic_s()
        if state.current(now_s) is not None:
            raise ResourceBusy("a transaction is open already; commit it or roll it back")
        state.transaction = StorageTransaction(self._ids.tagged("txn"), now_s)
        return {"transaction": state.transaction.id}

    async def _commit(self, state: PluginStorageState, transaction_id: str) -> JsonObject:
        now_s = self._clock.monotonic_s()
        held = state.require(transaction_id, now_s)
        state.require_rested(now_s)
        state.transaction = None  # it ends here, one way or the other
        counts = await self._run(state, held.steps) if held.steps else []
        each: list[JsonValue] = list(counts)
        return {"rows_affected": sum(counts), "statements": each}

    # -- own -----------------------------------------------------------------------------------

    async def _run(self, state: PluginStorageState, steps: list[GuestStep]) -> list[int]:
        state.require_rested(self._clock.monotonic_s())
        limits = self._quota_of(state).writing()
        plugin, prefix = state.schema.plugin, state.schema.prefix
        try:
            async with self._turn:
                return await self._tables.change(plugin, prefix, steps, limits)
        except GuestFault as fault:
            if fault.kind is FaultKind.TIME:
                state.rest(self._clock.monotonic_s())
            raise

    async def _rewrite(self, state: PluginStorageState, sql: str) -> Rewritten:
        schema = state.schema
        rewriter = self._rewriter or _rewrite_with_sqlglot
        statement = await self._tables.aside(
            schema.plugin, schema.prefix, lambda: rewriter(schema, sql)
        )
        state.remember(sql, statement)
        return statement

    def _require_inside(
        self,
        state: PluginStorageState,
        statement: Rewritten,
        held: StorageTransaction | None = None,
    ) -> None:
        """Refuse the host's tables by name, unless the plugin has one of that name itself."""
        for name in statement.uses & OUTSIDE_TABLES:
            owner = self._tables.owner_of(fold_name(state.schema.physical(name)))
            if owner != state.schema.plugin and (held is None or name not in held.made):
                raise outside(name)

    def _quota_of(self, state: PluginStorageState) -> StorageQuota:
        return self._quotas.get(state.schema.plugin, self._quota)

    def _state_of(self, plugin: str) -> PluginStorageState:
        state = self._states.get(plugin)
        if state is None:
            state = self._states[plugin] = PluginStorageState(PluginSchema.of(plugin))
        return state

    async def _record(
        self,
        plugin: str,
        params: JsonValue,
        error: StorageAccessDenied,
        fault: StoreError | None,
    ) -> None:
        sql = params.get("sql") if isinstance(params, dict) else None
        event = denied_event(plugin, sql if isinstance(sql, str) else "", error, fault)
        try:
            await self._audit.record(event)
        except KagedError as problem:  # the denial stands without its record
            _log.error("plugin.storage_denial_not_recorded", plugin=plugin, why=problem.code)


def _rewrite_with_sqlglot(schema: PluginSchema, sql: str) -> Rewritten:
    from kaged.plugins.storage.rewrite import rewrite  # noqa: PLC0415 - sqlglot takes its time

    return rewrite(schema, sql)


def _rename_index(sql: str, old: OwnedName, new: OwnedName) -> str:
    from kaged.plugins.storage.dialect import replace_names  # noqa: PLC0415 - sqlglot is slow

    left = [quoted(new.physical)]  # the first of that name is the index's own

    def renamed(name: str) -> str | None:
        return left.pop() if left and fold_name(name) == old.physical else None

    return replace_names(sql, renamed)


def _access(capabilities: CapabilitySet) -> StorageAccess | None:
    found: StorageAccess | None = None
    for item in capabilities:
        if isinstance(item, StorageCapability) and found is not StorageAccess.WRITE:
            found = item.access
    return found


def _require(access: StorageAccess | None, needed: StorageAccess, method: str) -> None:
    if access is None or (needed is StorageAccess.WRITE and access is not StorageAccess.WRITE):
        raise StorageAccessDenied(f"{method} needs the capability kaged:storage:{needed.value}")
