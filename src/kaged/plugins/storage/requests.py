"""What a plugin asks for: the params of the storage methods, read into types."""

from __future__ import annotations

from kaged.base import JsonValue
from kaged.base.lazy_dataclass import dataclass
from kaged.plugins.storage.values import parse_values
from kaged.store.guest import GuestValue
from kaged.wire.errors import InvalidParams

BEGIN = "kaged.storage.begin"
COMMIT = "kaged.storage.commit"
ROLLBACK = "kaged.storage.rollback"
SQL_LIMIT_CHARS = 1_000_000  # SQLite's own default; data goes into params


@dataclass(frozen=True, slots=True)
class StatementRequest:
    """Params of `kaged.storage.exec` and `kaged.storage.query`."""

    sql: str
    values: tuple[GuestValue, ...]
    transaction: str | None


def parse_request(params: JsonValue) -> StatementRequest:
    """Read the params of a statement (PH-METH-13).

    Raises:
        InvalidParams: `sql` is missing, no text or too long, `params` is no list of plain values.
    """
    if not isinstance(params, dict):
        raise InvalidParams("the params are not an object with sql in it")
    sql = params.get("sql")
    if not isinstance(sql, str):
        raise InvalidParams("sql is missing or not a string")
    if len(sql) > SQL_LIMIT_CHARS:
        raise InvalidParams(
            f"sql has {len(sql)} characters and the limit is {SQL_LIMIT_CHARS}",
            detail={"limit": "sql", "value": SQL_LIMIT_CHARS},
        )
    values = parse_values(params["params"]) if "params" in params else ()
    transaction = params.get("transaction")
    if transaction is not None and not isinstance(transaction, str):
        raise InvalidParams("transaction is not a string")
    return StatementRequest(sql, values, transaction)


def parse_transaction(params: JsonValue) -> str:
    """Read which transaction to commit or roll back.

    Raises:
        InvalidParams: it is not said.
    """
    found = params.get("transaction") if isinstance(params, dict) else None
    if not isinstance(found, str):
        raise InvalidParams("transaction is missing or not a string")
    return found
