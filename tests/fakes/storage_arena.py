"""A real store with a broker on it, and plugins that ask it things, as they would on the wire."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from fakes.store_home import StoreHome
from kaged.audit import AuditLog, AuditRow
from kaged.base import Clock, Ids, SystemClock
from kaged.kernel.capabilities import CapabilitySet, parse_capabilities
from kaged.plugins.storage import StorageBroker, StorageQuota
from kaged.plugins.storage.broker import Rewriter
from kaged.store import Store
from kaged.wire.errors import RpcError

READ = parse_capabilities(["kaged:storage:read"])
WRITE = parse_capabilities(["kaged:storage:write"])
NONE = CapabilitySet()


class StorageArena:
    """One database, one broker, any number of plugins by name."""

    def __init__(self, root: Path, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.ids = Ids(self.clock)
        self.home = StoreHome(root, self.clock, self.ids)
        self.rows: list[AuditRow] = []
        self.store: Store
        self.audit: AuditLog
        self.broker: StorageBroker

    async def open(self, quotas: Mapping[str, StorageQuota] | None = None) -> StorageArena:
        self.store = await self.home.store()
        self.audit = await self.home.log(self.store)
        self.audit.subscribe(self.rows.append)
        self.broker = await self.reopened(quotas)
        return self

    async def reopened(
        self,
        quotas: Mapping[str, StorageQuota] | None = None,
        rewriter: Rewriter | None = None,
    ) -> StorageBroker:
        """Make another broker on the same store."""
        return await StorageBroker.open(
            self.store, self.audit, self.clock, self.ids, quotas=quotas, rewriter=rewriter
        )

    async def close(self) -> None:
        await self.home.close()

    # -- asking --------------------------------------------------------------------------------

    async def ask(
        self,
        plugin: str,
        method: str,
        params: Any = None,
        capabilities: CapabilitySet = WRITE,
    ) -> dict[str, Any]:
        """Ask as a plugin does; return its answer as on the wire: a result or an error."""
        try:
            result = await self.broker.answer(
                plugin, capabilities, f"kaged.storage.{method}", params
            )
        except RpcError as error:
            said = {"code": int(error.number), "message": error.message, "data": error.detail}
            return {"error": said}
        json.dumps(result, allow_nan=False)
        return {"result": result}

    async def exec(self, plugin: str, sql: str, *values: Any) -> int:
        """Run a statement that has to work."""
        answer = await self.ask(plugin, "exec", {"sql": sql, "params": list(values)})
        assert "result" in answer, (sql, answer)
        return answer["result"]["rows_affected"]

    async def query(self, plugin: str, sql: str, *values: Any) -> list[dict[str, Any]]:
        """Run a query that has to work."""
        answer = await self.ask(plugin, "query", {"sql": sql, "params": list(values)})
        assert "result" in answer, (sql, answer)
        return answer["result"]["rows"]

    async def code(self, plugin: str, sql: str, *values: Any, method: str = "exec") -> int:
        """Run a statement that must not work; return the number of the error."""
        answer = await self.ask(plugin, method, {"sql": sql, "params": list(values)})
        assert "error" in answer, (sql, answer)
        return answer["error"]["code"]

    async def tables(self, plugin: str) -> list[str]:
        answer = await self.ask(plugin, "schema", {})
        return answer["result"]["tables"]

    # -- looking -------------------------------------------------------------------------------

    async def denied(self) -> list[dict[str, Any]]:
        """Return the data of all denials in the audit log so far."""
        await self.audit.flush()
        return [
            json.loads(row.data_json) for row in self.rows if row.name == "plugin.storage_denied"
        ]

    def raw(self, sql: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Look at the database itself, past the broker."""
        conn = sqlite3.connect(f"file:{self.home.database}?mode=ro", uri=True)
        try:
            return conn.execute(sql, values).fetchall()
        finally:
            conn.close()

    def physical_tables(self) -> set[str]:
        return {name for (name,) in self.raw("SELECT name FROM sqlite_master WHERE type='table'")}


__all__ = ["NONE", "READ", "WRITE", "StorageArena"]
