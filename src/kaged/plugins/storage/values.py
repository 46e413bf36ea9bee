"""Values on their way in and out: what may be bound, and what rows look like in JSON."""

from __future__ import annotations

import math
from base64 import b64encode
from typing import Any

from kaged.base import JsonObject, JsonValue
from kaged.plugins.storage.statement import Rewritten
from kaged.store.guest import FaultKind, GuestFault, GuestRows, GuestValue
from kaged.wire.errors import InvalidParams
from kaged.wire.fastjson import encode_json

VALUES_LIMIT = 10_000

_INT_MIN, _INT_MAX = -(2**63), 2**63 - 1
_WORST_ESCAPE = 6  # a control character takes six bytes in JSON


def parse_values(raw: JsonValue) -> tuple[GuestValue, ...]:
    """Read the values for a statement's question marks (PH-STOR-18).

    Raises:
        InvalidParams: no list, too many, or a value that SQLite has no type for.
    """
    if not isinstance(raw, list):
        raise InvalidParams("params is not a list")
    if len(raw) > VALUES_LIMIT:
        raise InvalidParams(
            f"there are {len(raw)} params and the limit is {VALUES_LIMIT}",
            detail={"limit": "params", "value": VALUES_LIMIT},
        )
    return tuple([_value(value, place) for place, value in enumerate(raw)])


def _value(value: JsonValue, place: int) -> GuestValue:
    if value is None or type(value) is str:
        return value
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, int):
        if _INT_MIN <= value <= _INT_MAX:
            return value
        raise InvalidParams(f"params[{place}] is an integer of more than 64 bits")
    if isinstance(value, float):
        if math.isfinite(value):
            return value
        raise InvalidParams(f"params[{place}] is not a finite number")
    kind = "a list" if isinstance(value, list) else "an object"
    raise InvalidParams(f"params[{place}] is {kind}; encode it as text")


def shape_rows(found: GuestRows, statement: Rewritten, limit_bytes: int) -> JsonObject:
    """Return rows as the answer to a query: objects by column, and the columns in order.

    Blobs become base64 text; infinite numbers, for which JSON has no form, become null.

    Raises:
        GuestFault: the answer would be longer than `limit_bytes`.
    """
    columns = [statement.column(name) for name in found.columns]
    names: list[JsonValue] = list(columns)
    rows: list[JsonValue] = []
    for row in found.rows:
        shaped: dict[str, Any] = dict(zip(columns, row, strict=True))
        for value in row:
            if type(value) is bytes or type(value) is float:
                shaped = {name: _shown(value) for name, value in shaped.items()}
                break
        rows.append(shaped)
    answer: JsonObject = {"rows": rows, "columns": names}
    per_row = sum(len(name) * _WORST_ESCAPE + 28 for name in columns)
    worst = (found.size_bytes + per_row) * _WORST_ESCAPE + per_row * len(rows)
    # Encoding twice is only worth it when it could matter.
    if worst > limit_bytes and len(encode_json(answer)) > limit_bytes:
        raise GuestFault(FaultKind.RESULT, "the answer is too large", limit=limit_bytes)
    return answer


def _shown(value: str | bytes | float | None) -> JsonValue:
    if isinstance(value, bytes):
        return b64encode(value).decode("ascii")
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
