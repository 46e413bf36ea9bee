"""`Storage`: SQL on the plugin's own tables, through the host."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias, cast

if TYPE_CHECKING:
    from kaged.base.jsonvalue import JsonObject

SqlValue: TypeAlias = "str | int | float | bool | None"
Request: TypeAlias = Callable[[str, "JsonObject"], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Rows:
    """What a query found: rows as objects keyed by column, and the columns in order."""

    rows: list[dict[str, Any]]
    columns: list[str]


class Storage:
    """Runs statements on the plugin's own tables; needs a `kaged:storage` capability.

    Write plain table names; the host keeps them apart from other plugins' tables. Values are bound,
    never pasted. Each call is one transaction. Errors of the host arrive as `RpcError`.
    """

    def __init__(self, request: Request) -> None:
        self._request = request

    async def query(self, sql: str, params: Sequence[SqlValue] = ()) -> Rows:
        """Run one SELECT."""
        answer = await self._request("kaged.storage.query", {"sql": sql, "params": list(params)})
        found = cast("dict[str, Any]", answer)
        return Rows(rows=found["rows"], columns=found["columns"])

    async def exec(self, sql: str, params: Sequence[SqlValue] = ()) -> int:
        """Run one changing statement and give the number of rows it touched."""
        answer = await self._request("kaged.storage.exec", {"sql": sql, "params": list(params)})
        return int(cast("dict[str, Any]", answer)["rows_affected"])

    async def schema(self) -> list[str]:
        """List the plugin's own tables."""
        answer = await self._request("kaged.storage.schema", {})
        return list(cast("dict[str, Any]", answer)["tables"])


__all__ = ["Rows", "SqlValue", "Storage"]
