"""`Storage`: SQL on the plugin's own tables, through the host."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from kaged.base.lazy_dataclass import dataclass
from kaged.wire.errors import RpcError

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject

SqlValue: TypeAlias = "str | int | float | bool | None"
Request: TypeAlias = Callable[[str, "JsonObject"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found: rows as objects keyed by column, and the columns in order."""

    rows: list[dict[str, Any]]
    columns: list[str]


@dataclass(frozen=True, slots=True)
class Changed:
    """What a statement did: how many rows it touched."""

    rows_affected: int


@dataclass(frozen=True, slots=True)
class Queued:
    """What became of a statement in a transaction: nothing yet; so many wait."""

    rows_affected: int
    queued: int


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit did: the rows touched in all, and by each statement."""

    rows_affected: int
    statements: list[int]


@dataclass(frozen=True, slots=True)
class Tables:
    """The plugin's own tables."""

    tables: list[str]


class Transaction:
    """Statements that the host runs together at `commit`, or not at all.

    One may be open per plugin. Nothing is locked while it is open; the host forgets one that is
    left alone for five seconds, and every one of a process that ends.
    """

    def __init__(self, request: Request, transaction_id: str) -> None:
        self._request = request
        self.id = transaction_id

    async def exec(self, sql: str, params: Sequence[SqlValue] = ()) -> Queued:
        """Add one changing statement; it runs at `commit`."""
        body: JsonObject = {"sql": sql, "params": list(params), "transaction": self.id}
        answer = await self._request("kaged.storage.exec", body)
        found = cast("dict[str, Any]", answer)
        return Queued(int(found.get("rows_affected", 0)), int(found["queued"]))

    async def commit(self) -> Committed:
        """Run all of it."""
        answer = await self._request("kaged.storage.commit", {"transaction": self.id})
        found = cast("dict[str, Any]", answer)
        return Committed(sum(found["statements"]), list(found["statements"]))

    async def rollback(self) -> None:
        """Forget all of it."""
        await self._request("kaged.storage.rollback", {"transaction": self.id})

    async def forget(self) -> None:
        """Roll back on the way out of an error, which matters more than one of this."""
        with suppress(RpcError):
            await self.rollback()


class Storage:
    """Runs statements on the plugin's own tables; needs a `kaged:storage` capability.

    Write plain table names; the host keeps them apart from other plugins' tables. Values are bound,
    never pasted. Each call is one transaction; `transaction` and `batch` make one of several
    statements. Errors of the host arrive as `RpcError`.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    async def query(self, sql: str, params: Sequence[SqlValue] = ()) -> Rows:
        """Run one SELECT."""
        answer = await self._request("kaged.storage.query", {"sql": sql, "params": list(params)})
        found = cast("dict[str, Any]", answer)
        return Rows(rows=found["rows"], columns=found["columns"])

    async def exec(self, sql: str, params: Sequence[SqlValue] = ()) -> Changed:
        """Run one changing statement."""
        answer = await self._request("kaged.storage.exec", {"sql": sql, "params": list(params)})
        return Changed(int(cast("dict[str, Any]", answer)["rows_affected"]))

    async def begin(self) -> Transaction:
        """Open a transaction that is committed or rolled back by hand."""
        answer = await self._request("kaged.storage.begin", {})
        return Transaction(self._request, str(cast("dict[str, Any]", answer)["transaction"]))

    @asynccontextmanager
    async def transaction(self) -> AsyncGenerator[Transaction]:
        """Open a transaction for a block: committed at its end, rolled back if it raises.

        `async with plugin.storage.transaction() as together: await together.exec("INSERT …")`
        """
        together = await self.begin()
        try:
            yield together
        except BaseException:
            await together.forget()
            raise
        await together.commit()

    async def batch(self, statements: Iterable[tuple[str, Sequence[SqlValue]]]) -> Committed:
        """Run several changing statements together or not at all."""
        together = await self.begin()
        try:
            for sql, params in statements:
                await together.exec(sql, params)
        except BaseException:
            await together.forget()
            raise
        return await together.commit()

    async def schema(self) -> Tables:
        """List the plugin's own tables."""
        answer = await self._request("kaged.storage.schema", {})
        return Tables(list(cast("dict[str, Any]", answer)["tables"]))
